"""Mistakes in the chapters of the parameter server and of the recommender."""

from tests.mutations import Mutation

CHAPTER, TABLES = "minitrain.parameter_server", "minitrain.recommender"
SERVING = f"{TABLES}.serving"
SYNCHRONOUS, ASYNCHRONOUS = f"{CHAPTER}.synchronous", f"{CHAPTER}.asynchronous"
EMBEDDING, HYBRID = f"{TABLES}.embedding", f"{TABLES}.hybrid"
THEORY, STALENESS = "minitrain.costs.parameter_server", "minitrain.costs.staleness"

SMALL = "small form: weights that differ"
REPLAYED = "parameters that differ from the log's"
GAINED = "updates in 32 virtual seconds"
TESTS = "tests/parameter_server"
RULES = "rows' distance from an optimizer"
PLACED = "elements, states and places that differ"

MUTATIONS = [
    # The practice: parameter servers.
    Mutation(f"{SYNCHRONOUS}.Server.collect", "self.mean /= len(self.workers)", "pass", SYNCHRONOUS, SMALL),
    Mutation(f"{SYNCHRONOUS}.Server.collect", "self.mean.zero_()", "pass", SYNCHRONOUS, SMALL),
    Mutation(f"{SYNCHRONOUS}.Server.collect", "in self.workers:", "in reversed(self.workers):", SYNCHRONOUS, SMALL),
    Mutation(
        f"{CHAPTER}.full.placement.place",
        "emptiest = loads.index(min(loads))",
        "emptiest = tensor % servers",
        test=f"{TESTS}/test_placement.py::test_no_fuller_than_the_theorems_allow",
        why="the lesson's prediction uses the placement",
    ),
    Mutation(
        f"{CHAPTER}.full.placement.place",
        "-sizes[i]",
        "sizes[i]",
        test=f"{TESTS}/test_placement.py::test_the_largest_goes_first_and_equal_ones_in_their_order",
        why="the lesson's prediction uses the placement",
    ),
    Mutation(
        f"{CHAPTER}.full.synchronous.Server._add_up",
        "div_(taken)",
        "div_(len(workers))",
        test=f"{TESTS}/test_synchronous.py::test_gradients_that_are_not_finite_are_refused_and_counted",
        why="in the lesson no push is refused",
    ),
    Mutation(
        f"{CHAPTER}.full.shares.Parcel.refused",
        "push[-1].real < 0",
        "push[-1].real > 1",
        test=f"{TESTS}/test_synchronous.py::test_gradients_that_are_not_finite_are_refused_and_counted",
        why="in the lesson no push is refused",
    ),
    Mutation(f"{SYNCHRONOUS}.set_gradients", "part.view_as", "part.clone().view_as", SYNCHRONOUS, SMALL),
    Mutation(
        f"{ASYNCHRONOUS}.AsynchronousServer.may_begin",
        "<=",
        "<",
        test=f"{TESTS}/test_clocks.py::test_the_worst_of_all_orders_is_the_bound",
        why="the bound still holds; workers wait more than they need",
    ),
    Mutation(
        f"{ASYNCHRONOUS}.AsynchronousServer.may_begin",
        "self.staleness is None or lead <= self.staleness",
        "True",
        ASYNCHRONOUS,
        "most steps that a worker",
    ),
    Mutation(
        f"{ASYNCHRONOUS}.AsynchronousServer.apply",
        "self.clocks[worker], self.pulled[worker])",
        "self.clocks[worker], len(self.log))",
        ASYNCHRONOUS,
        REPLAYED,
    ),
    Mutation(f"{CHAPTER}.full.clocks.Clocks.lead", "min(", "max(", ASYNCHRONOUS, GAINED),
    Mutation(
        f"{CHAPTER}.full.asynchronous.AsynchronousServer._apply",
        "if finite:",
        "if True:",
        test=f"{TESTS}/test_asynchronous.py::test_random_delays",
        why="in the lesson all gradients are finite",
    ),
    Mutation(
        f"{CHAPTER}.full.asynchronous.AsynchronousServer._answer",
        "self._pulled[worker] = self._applied",
        "self._pulled[worker] = max(self._applied - 1, 0)",
        ASYNCHRONOUS,
        REPLAYED,
    ),
    # The practice: tables.
    Mutation(f"{TABLES}.hashing.mix", "_shifted(z, 27)", "_shifted(z, 28)", EMBEDDING, PLACED),
    Mutation(f"{TABLES}.hashing.owner", "mix(ids) % servers", "ids % servers", EMBEDDING, PLACED),
    Mutation(
        f"{TABLES}.hash_table.Index._home",
        "mix(mix(ids))",
        "ids << 2",
        test="tests/recommender/test_tables.py::test_searches_are_as_short_as_knuth_says",
        why="slots decide nothing but time",
    ),
    Mutation(
        f"{EMBEDDING}.EmbeddingServer._learn",
        "total / len(self.roles.workers)",
        "total / len(self.roles.servers) ** 2",
        EMBEDDING,
        "elements that differ from a dense",
    ),
    Mutation(
        f"{TABLES}.row_rules.RowWiseAdagrad.apply",
        "mean(1, keepdim=True)",
        "sum(1, keepdim=True)",
        test="tests/recommender/test_row_rules.py::test_row_wise_adagrad_in_python_numbers",
        why="the demo trains with SGD and Adagrad",
    ),
    Mutation(
        f"{TABLES}.row_rules.Adam.apply",
        "(1 - second**steps).sqrt()",
        "(1 - second**steps)",
        test="tests/recommender/test_row_rules.py::test_adam_takes_each_rows_steps_as_torchs_adam_does_for_the_row_alone",
        why="the demo trains with SGD and Adagrad",
    ),
    Mutation(
        f"{TABLES}.row_rules.Adam.states",
        '"steps": 1',
        '"steps": dimension',
        test="tests/recommender/test_row_rules.py::test_bytes_of_a_row_and_its_states",
        why="the demo trains with SGD and Adagrad",
    ),
    Mutation(f"{HYBRID}.HybridTables.push", "total / self.ranks", "total", HYBRID, "elements of rows and states"),
    Mutation(
        f"{TABLES}.click.auc",
        "- down / 2",
        "",
        test="tests/recommender/test_click.py::test_auc_counts_pairs",
        why="scores of the demo are all different",
    ),
    # The theory: parameter servers.
    Mutation(
        f"{THEORY}.server_link",
        "elements + len(members)",
        "elements",
        SYNCHRONOUS,
        "bytes through the busiest server's link in",
    ),
    Mutation(
        f"{THEORY}.busiest_server",
        "return max(",
        "return sum(",
        SYNCHRONOUS,
        "bytes through the busiest server's link in",
    ),
    Mutation(f"{THEORY}.busiest_in_ring", "+ sent[rank - 1]", "", SYNCHRONOUS, "bytes through the busiest link if"),
    Mutation(
        f"{THEORY}.servers_to_match",
        "-(-(workers**2) //",
        "(workers**2 //",
        test="tests/costs/test_parameter_server.py::test_where_servers_and_ring_cross",
        why="both links are claimed in bytes, and not their quotient",
    ),
    Mutation(
        f"{THEORY}.step_time",
        "workers * (alpha + beta * push)",
        "(alpha + beta * push)",
        SYNCHRONOUS,
        "small form: time of a step",
    ),
    Mutation(
        f"{STALENESS}.most_stale",
        "2 * staleness + 1",
        "2 * staleness",
        test=f"{TESTS}/test_clocks.py::test_the_worst_of_all_orders_is_the_bound",
        why="the lesson's runs are not the worst that can come",
    ),
    Mutation(f"{STALENESS}.steps_until", "+ staleness + 1", "+ staleness", ASYNCHRONOUS, GAINED),
    *(
        Mutation(
            f"{STALENESS}.largest_rate",
            old,
            new,
            test="tests/costs/test_staleness.py",
            why="the learning rate that a delay allows is the notebook's",
        )
        for old, new in (
            ("2 / curvature * math.sin(math.pi / (2 * (2 * delay + 1)))", "1 / (curvature * max(delay, 1))"),
            ("2 * delay + 1", "2 * delay + 2"),
            ("2 / curvature", "2 * curvature"),
            ("math.sin(", "math.tan("),
        )
    ),
    Mutation(
        f"{STALENESS}.bytes_served",
        "+ workers * other",
        "",
        test="tests/costs/test_staleness.py::test_bytes_served",
        why="the small form has no buffers and no frozen parameters",
    ),
    # The theory: tables.
    Mutation(
        "minitrain.costs.embedding.step",
        "sum(partner) * ID",
        "sum(partner) * 4",
        EMBEDDING,
        "bytes sent by this rank",
    ),
    Mutation(
        "minitrain.costs.embedding.step",
        "count * d * item",
        "count * item * item",
        EMBEDDING,
        "bytes sent by this rank",
    ),
    Mutation(
        "minitrain.costs.embedding.expected_distinct",
        "draws * math.log1p(-p)",
        "-draws * p * p",
        test="tests/costs/test_embedding.py::test_distinct_ids_by_all_draws",
        why="averages are only drawn",
    ),
    Mutation(
        "minitrain.costs.embedding.row_bytes",
        "dimension + states",
        "2 * dimension",
        test="tests/costs/test_embedding.py::test_bytes_of_a_row",
        why="averages are only drawn",
    ),
    Mutation(
        "minitrain.costs.hybrid.worker", "counts[rank] for", "counts[0] for", HYBRID, "bytes to and from the busiest"
    ),
    Mutation(
        "minitrain.costs.hybrid.on_average",
        "(workers - 1) / workers",
        "(workers - 1)",
        test="tests/costs/test_hybrid.py::test_averages_over_all_ways_to_spread_ids",
        why="averages are only drawn",
    ),
    Mutation(
        "minitrain.costs.hybrid.server_on_average",
        "workers / servers",
        "workers",
        test="tests/costs/test_hybrid.py::test_averages_over_all_ways_to_spread_ids",
        why="averages are only drawn",
    ),
    # From training to serving.
    Mutation(
        f"{TABLES}.tables.Table.changed",
        "self._last[: len(self), 0] > since",
        "self._last[: len(self), 0] >= since",
        SERVING,
        "bytes of the versions",
    ),
    Mutation(
        f"{TABLES}.tables.Table.update",
        "self._last[numbers] = self.updates",
        "pass",
        SERVING,
        "bytes of the versions",
    ),
    Mutation(
        f"{TABLES}.tables.Table.evict",
        "<= self.updates - age",
        "< self.updates - age",
        test="tests/recommender/test_serving.py::test_rows_that_are_evicted_leave_the_replica_and_may_come_back",
        why="the demo drops no rows",
    ),
    Mutation(
        f"{SERVING}.Publisher.evict",
        "self._evicted.append(self.table.evict(age))",
        "self._evicted.append(self.table.evict(age)[:0])",
        test="tests/recommender/test_serving.py::test_rows_that_are_evicted_leave_the_replica_and_may_come_back",
        why="the demo drops no rows",
    ),
    Mutation(
        f"{SERVING}.Replica._apply",
        "self._rows[numbers] = rows.view(changed, dimension)",
        "self._rows[numbers[new]] = rows.view(changed, dimension)[new]",
        SERVING,
        "ids and elements served that differ",
    ),
    Mutation(
        f"{SERVING}.Replica._apply",
        "hashlib.sha256(rest).digest() != checksum",
        "len(rest) < _HEAD.size",
        SERVING,
        "damaged versions that were served",
    ),
    Mutation(
        "minitrain.costs.serving.version_bytes", "8 + dimension", "4 + dimension", SERVING, "bytes of the versions"
    ),
]
