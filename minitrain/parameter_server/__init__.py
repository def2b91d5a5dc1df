"""Chapter 18, the parameter server: some ranks keep the parameters, the others compute gradients.

`synchronous` keeps all workers in step, `asynchronous` lets them drift apart by a bound.

The names that the package itself has are full forms. The small forms of the same names are imported from their files:
`synchronous.Server`, `synchronous.Worker`, `asynchronous.AsynchronousServer`.
"""

from typing import TYPE_CHECKING

from minitrain.comm.lazy import lazily

if TYPE_CHECKING:
    from minitrain.parameter_server.full.placement import place
    from minitrain.parameter_server.full.roles import Roles, split_roles
    from minitrain.parameter_server.full.synchronous import Server, Worker

_HOME = {
    "Roles": "full.roles",
    "Server": "full.synchronous",
    "Worker": "full.synchronous",
    "place": "full.placement",
    "split_roles": "full.roles",
}
__all__ = list(_HOME)
__getattr__ = lazily(__name__, _HOME)
