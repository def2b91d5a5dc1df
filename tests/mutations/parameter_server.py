"""Mistakes in the chapters of the parameter server and of the recommender."""

from tests.mutations import by_claim, by_test, table

PLACEMENT = "the lesson's prediction uses the placement"
TWO_RULES = "the demo trains with SGD and Adagrad"
DRAWN_ONLY = "averages are only drawn"

MUTATIONS = table(
    by_claim("parameter_server.synchronous", "small form: weights that differ"),
    ("parameter_server.synchronous.Server.collect", "self.mean /= len(self.workers)", "pass"),
    ("parameter_server.synchronous.Server.collect", "self.mean.zero_()", "pass"),
    ("parameter_server.synchronous.Server.collect", "in self.workers:", "in reversed(self.workers):"),
    ("parameter_server.synchronous.set_gradients", "part.view_as", "part.clone().view_as"),
    by_test("tests/parameter_server/test_placement.py::test_no_fuller_than_the_theorems_allow", PLACEMENT),
    ("parameter_server.full.placement.place", "emptiest = loads.index(min(loads))", "emptiest = tensor % servers"),
    by_test(
        "tests/parameter_server/test_placement.py::test_the_largest_goes_first_and_equal_ones_in_their_order", PLACEMENT
    ),
    ("parameter_server.full.placement.place", "-sizes[i]", "sizes[i]"),
    by_test(
        "tests/parameter_server/test_synchronous.py::test_gradients_that_are_not_finite_are_refused_and_counted",
        "in the lesson no push is refused",
    ),
    ("parameter_server.full.synchronous.Server._add_up", "div_(taken)", "div_(len(workers))"),
    ("parameter_server.full.shares.Parcel.refused", "push[-1].real < 0", "push[-1].real > 1"),
    by_test(
        "tests/parameter_server/test_clocks.py::test_the_worst_of_all_orders_is_the_bound",
        "the bound still holds; workers wait more than they need",
    ),
    ("parameter_server.asynchronous.AsynchronousServer.may_begin", "<=", "<"),
    by_claim("parameter_server.asynchronous", "most steps that a worker"),
    (
        "parameter_server.asynchronous.AsynchronousServer.may_begin",
        "self.staleness is None or lead <= self.staleness",
        "True",
    ),
    by_claim("parameter_server.asynchronous", "parameters that differ from the log's"),
    ("parameter_server.asynchronous.AsynchronousServer.apply", "self.pulled[worker])", "len(self.log))"),
    ("parameter_server.full.asynchronous.AsynchronousServer._answer", "= self._applied", "= max(self._applied - 1, 0)"),
    by_claim("parameter_server.asynchronous", "updates in 32 virtual seconds"),
    ("parameter_server.full.clocks.Clocks.lead", "min(", "max("),
    ("costs.staleness.steps_until", "+ staleness + 1", "+ staleness"),
    by_test(
        "tests/parameter_server/test_asynchronous.py::test_random_delays", "in the lesson all gradients are finite"
    ),
    ("parameter_server.full.asynchronous.AsynchronousServer._apply", "if finite:", "if True:"),
    by_claim("recommender.embedding", "elements, states and places that differ"),
    ("recommender.hashing.mix", "_shifted(z, 27)", "_shifted(z, 28)"),
    ("recommender.hashing.owner", "mix(ids) % servers", "ids % servers"),
    by_test(
        "tests/recommender/test_tables.py::test_searches_are_as_short_as_knuth_says", "slots decide nothing but time"
    ),
    ("recommender.hash_table.Index._home", "mix(mix(ids))", "ids << 2"),
    by_claim("recommender.embedding", "elements that differ from a dense"),
    ("recommender.embedding.EmbeddingServer._learn", "/ len(self.roles.workers)", "/ len(self.roles.servers) ** 2"),
    by_test("tests/recommender/test_row_rules.py::test_row_wise_adagrad_in_python_numbers", TWO_RULES),
    ("recommender.row_rules.RowWiseAdagrad.apply", "mean(1, keepdim=True)", "sum(1, keepdim=True)"),
    by_test(
        "tests/recommender/test_row_rules.py::test_adam_takes_each_rows_steps_as_torchs_adam_does_for_the_row_alone",
        TWO_RULES,
    ),
    ("recommender.row_rules.Adam.apply", "(1 - second**steps).sqrt()", "(1 - second**steps)"),
    by_test("tests/recommender/test_row_rules.py::test_bytes_of_a_row_and_its_states", TWO_RULES),
    ("recommender.row_rules.Adam.states", '"steps": 1', '"steps": dimension'),
    by_claim("recommender.hybrid", "elements of rows and states"),
    ("recommender.hybrid.HybridTables.push", "total / self.ranks", "total"),
    by_test("tests/recommender/test_click.py::test_auc_counts_pairs", "scores of the demo are all different"),
    ("recommender.click.auc", "- down / 2", ""),
    by_claim("parameter_server.synchronous", "bytes through the busiest server's link in"),
    ("costs.parameter_server.server_link", "elements + len(members)", "elements"),
    ("costs.parameter_server.busiest_server", "return max(", "return sum("),
    by_claim("parameter_server.synchronous", "bytes through the busiest link if"),
    ("costs.parameter_server.busiest_in_ring", "+ sent[rank - 1]", ""),
    by_test(
        "tests/costs/test_parameter_server.py::test_where_servers_and_ring_cross",
        "both links are claimed in bytes, and not their quotient",
    ),
    ("costs.parameter_server.servers_to_match", "-(-(workers**2) //", "(workers**2 //"),
    by_claim("parameter_server.synchronous", "small form: time of a step"),
    ("costs.parameter_server.step_time", "workers * (alpha + beta * push)", "(alpha + beta * push)"),
    by_test(
        "tests/parameter_server/test_clocks.py::test_the_worst_of_all_orders_is_the_bound",
        "the lesson's runs are not the worst that can come",
    ),
    ("costs.staleness.most_stale", "2 * staleness + 1", "2 * staleness"),
    by_test("tests/costs/test_staleness.py", "the learning rate that a delay allows is the notebook's"),
    (
        "costs.staleness.largest_rate",
        "2 / curvature * math.sin(math.pi / (2 * (2 * delay + 1)))",
        "1 / (curvature * max(delay, 1))",
    ),
    ("costs.staleness.largest_rate", "2 * delay + 1", "2 * delay + 2"),
    ("costs.staleness.largest_rate", "2 / curvature", "2 * curvature"),
    ("costs.staleness.largest_rate", "math.sin(", "math.tan("),
    by_test(
        "tests/costs/test_staleness.py::test_bytes_served", "the small form has no buffers and no frozen parameters"
    ),
    ("costs.staleness.bytes_served", "+ workers * other", ""),
    by_claim("recommender.embedding", "bytes sent by this rank"),
    ("costs.embedding.step", "sum(partner) * ID", "sum(partner) * 4"),
    ("costs.embedding.step", "count * d * item", "count * item * item"),
    by_test("tests/costs/test_embedding.py::test_distinct_ids_by_all_draws", DRAWN_ONLY),
    ("costs.embedding.expected_distinct", "draws * math.log1p(-p)", "-draws * p * p"),
    by_test("tests/costs/test_embedding.py::test_bytes_of_a_row", DRAWN_ONLY),
    ("costs.embedding.row_bytes", "dimension + states", "2 * dimension"),
    by_claim("recommender.hybrid", "bytes to and from the busiest"),
    ("costs.hybrid.worker", "counts[rank] for", "counts[0] for"),
    by_test("tests/costs/test_hybrid.py::test_averages_over_all_ways_to_spread_ids", DRAWN_ONLY),
    ("costs.hybrid.on_average", "(workers - 1) / workers", "(workers - 1)"),
    ("costs.hybrid.server_on_average", "workers / servers", "workers"),
    by_claim("recommender.serving", "bytes of the versions"),
    ("recommender.tables.Table.changed", "self._last[: len(self), 0] > since", "self._last[: len(self), 0] >= since"),
    ("recommender.tables.Table.update", "self._last[numbers] = self.updates", "pass"),
    ("costs.serving.version_bytes", "8 + dimension", "4 + dimension"),
    by_test(
        "tests/recommender/test_serving.py::test_rows_that_are_evicted_leave_the_replica_and_may_come_back",
        "the demo drops no rows",
    ),
    ("recommender.tables.Table.evict", "<= self.updates - age", "< self.updates - age"),
    ("recommender.serving.Publisher.evict", ".append(self.table.evict(age))", ".append(self.table.evict(age)[:0])"),
    by_claim("recommender.serving", "ids and elements served that differ"),
    (
        "recommender.serving.Replica._apply",
        "self._rows[numbers] = rows.view(changed, dimension)",
        "self._rows[numbers[new]] = rows.view(changed, dimension)[new]",
    ),
    by_test("tests/recommender/test_serving.py", "the demo damages nothing"),
    ("recommender.serving.Replica._apply", "hashlib.sha256(rest).digest() != checksum", "len(rest) < _HEAD.size"),
)
