from tests import shapes as shapes  # jaxtyping finds the type checker as tests.shapes.checked
