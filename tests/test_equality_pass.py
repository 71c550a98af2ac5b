"""What the equality pass finds, on steps whose gradients are written down: no model is trained."""

import re
from types import SimpleNamespace

import msgspec
import pytest
import torch
from torch import nn

from profiler.core.case import Choice, Trial
from profiler.core.record import Equality, judge
from profiler.measuring import equality_pass, meters
from profiler.measuring.meters import equality, wrong_gradients
from profiler.measuring.ranks import Group
from profiler.measuring.trial import measure
from profiler.training.workload import Workload, batch_statistics
from tests import make

EQUAL = Equality(loss_equal=True, gradients_equal=True, buffers_equal=True, random_state_equal=True)


def left(gradients, loss=1.0, buffers=None, frozen=()):
    """What a step with these gradients leaves, if all weights are 1; they are written down as lists.

    The next step has the same.
    """
    module = nn.Module()
    for name in gradients:
        module.register_parameter(name, nn.Parameter(torch.ones(2), requires_grad=name not in frozen))
    for name, values in (buffers or {}).items():
        module.register_buffer(name, torch.tensor(values))

    def again():
        for name, gradient in gradients.items():
            weights = module.get_parameter(name)
            weights.grad = None if gradient is None else torch.tensor(gradient) * weights.detach()
        return torch.tensor(loss)

    workload = Workload(module=module, batch=(torch.ones(1),), loss=lambda module, batch: torch.ones(()))
    return equality.Ran(workload=workload, loss=again(), again=again)


def step(gradients, **others):
    return lambda: left(gradients, **others)


def steps(*runs):
    """A step that leaves other gradients whenever it runs, takes them off its weights of 1, and leaves those."""
    ways = iter(runs)

    def run():
        ran = left(next(ways))
        weights = ran.workload.module.a

        def again():
            weights.grad = (weights - weights.grad).detach()
            return torch.tensor(1.0)

        return msgspec.structs.replace(ran, again=again)

    return run


def never():
    raise AssertionError("this step was not to run")


def results(gradients, **others):
    return equality.collect(step(gradients, **others))


def two_results(gradients):
    """Those of a step and of the next one."""
    return equality.collect_two(steps(gradients))


class Two(Group):
    """The first of two ranks; the second gives what is written down here, or what the first one gives."""

    size = 2
    mesh = "a mesh"

    def __init__(self, second=lambda found: found):
        self._second = second

    def gather(self, found):
        return [found, self._second(found)]


# --- two steps


@pytest.mark.parametrize(
    ("other", "loss", "fields"),
    [
        ({"a": [1.0, 2.0], "b": [4.0, 0.0], "c": None}, 1.0, {}),
        ({"a": [1.0, 1.5], "b": [2.0, 0.0], "c": None}, 1.0, {"largest_difference": 0.5, "worst_parameter": "b"}),
        ({"a": [1.0, 2.0], "b": [3.0, 0.0], "c": None}, 0.5, {"largest_difference": 0.5, "worst_parameter": "(loss)"}),
        (
            {"a": [1.0, 2.0], "b": None, "c": [1.0, 1.0]},
            1.0,
            {"largest_difference": 2.0, "worst_parameter": "b", "missing": ("b",)},
        ),
    ],
)
def test_the_largest_difference_is_named_and_gradients_that_only_the_reference_has_are_missing(other, loss, fields):
    found = equality.compare(results({"a": [1.0, 2.0], "b": [4.0, 0.0], "c": None}), results(other, loss=loss))

    told = {"gradients_equal": not fields, "loss_equal": loss == 1.0, "worst_step": 1 if fields else None}
    assert found == msgspec.structs.replace(EQUAL, num_gradients=2, **told, **fields)


def test_a_gradient_far_below_the_models_largest_is_held_to_a_part_of_that():
    least = 1024.0 * meters.LEAST_SCALE
    reference, other = ({"a": [1024.0, 1.0], "b": [least / size, 0.0], "c": None} for size in (8.0, 4.0))

    far_below = equality.compare(results(reference, loss=1e9), results(other, loss=1e9))
    not_finite = equality.compare(results({**reference, "d": [float("inf"), 1.0]}), results({**other, "d": [0.0, 1.0]}))
    loss = equality.compare(results({"a": [1024.0, 1.0]}, loss=1e-3), results({"a": [1024.0, 1.0]}, loss=2e-3))

    assert (far_below.largest_difference, far_below.worst_parameter) == (1 / 8, "b")
    assert (not_finite.largest_difference, not_finite.worst_parameter) == (2.0, "d")
    assert (loss.largest_difference, loss.worst_parameter) == (0.5, "(loss)")


def test_a_wrong_gradient_far_below_the_largest_is_found_where_two_runs_are_equal_to_the_bit():
    right, wrong = {"a": [1024.0, 1.0], "b": [1e-9, 0.0]}, {"a": [1024.0, 1.0], "b": [2e-9, 0.0]}

    found = equality.verify(step(wrong), step(right), {})

    assert (found.noise_floor, found.worst_parameter) == (0.0, "b")
    assert "worst in b" in (judge(found, strict=False) or "")


@pytest.mark.parametrize(
    ("counts", "other", "difference", "names"),
    [
        (("num_batches_tracked",), (2.0, 4.0), None, ("num_batches_tracked",)),  # a norm's count of batches
        (("num_batches_tracked",), (2.0, 3.0), 0.25, ("mean", "num_batches_tracked")),
        ((), (2.0, 4.0), 0.5, ("num_batches_tracked",)),  # no norm's: the user's own
        ((), (1.0, 3.0), 0.25, ("mean",)),
    ],
)
def test_buffers_are_compared_and_a_norms_count_says_nothing_of_how_much_they_differ(counts, other, difference, names):
    def norms(count, mean):
        found = results({}, buffers={"num_batches_tracked": [count], "mean": [mean]})
        return msgspec.structs.replace(found, counts=frozenset(counts))

    found = equality.compare(norms(1.0, 4.0), norms(*other))

    assert (found.buffers_equal, found.buffers_difference, found.differing_buffers) == (False, difference, names)
    counts = batch_statistics(nn.Sequential(nn.BatchNorm1d(2)), of=("num_batches_tracked",))
    assert counts == {"0.num_batches_tracked"}
    assert batch_statistics(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.BatchNorm1d(2, affine=False))) == {
        f"{place}.{name}" for place in (1, 2) for name in ("running_mean", "running_var", "num_batches_tracked")
    }


def test_what_is_collected_is_a_copy_and_a_sparse_gradient_is_compared_and_digested_by_its_values():
    ran = left({"a": [4.0, 0.0]})
    dense = equality.collect(lambda: ran)
    ran.workload.module.a.grad.zero_()
    equal, other = (
        msgspec.structs.replace(results({}), gradients={"a": torch.tensor([size, 0.0]).to_sparse()}) for size in (4, 3)
    )

    torch.rand(1)
    drawn = equality.compare(dense, results({"a": [4.0, 0.0]}))

    assert equality.compare(dense, equal).largest_difference is None
    assert equal.digests()["gradients"] == dense.digests()["gradients"]
    assert equality.compare(dense, other).largest_difference == 0.25
    assert (drawn.random_state_equal, drawn.gradients_equal) == (False, True)


# --- noise and rounding


def test_equal_digests_need_no_run_of_the_baseline_and_unequal_buffers_one():
    gradients = {"a": [8.0, 4.0]}
    digests = equality.collect_two(step(gradients)).digests()
    counted = equality.collect_two(step(gradients, buffers={"seen": 1.0})).digests()
    baselines = iter([left(gradients, buffers={"seen": 1.0})])

    equal = equality.verify(step(gradients), never, digests, nudged=never)
    moved = equality.verify(step(gradients, buffers={"seen": 2.0}), lambda: next(baselines), counted)

    assert equal == msgspec.structs.replace(EQUAL, digests=digests)
    assert (moved.gradients_equal, moved.buffers_equal, moved.noise_floor) == (True, False, 0.0)


@pytest.mark.parametrize("recorded", [{}, two_results({"a": [8.0, 1.0]}).digests()])
def test_where_digests_differ_the_nearer_of_two_runs_counts_and_their_difference_is_the_noise(recorded):
    mine = {"a": [8.0, 5.0]}

    found = equality.verify(steps(mine, mine), steps({"a": [8.0, 1.0]}, {"a": [8.0, 4.0]}), recorded)

    assert (found.largest_difference, found.noise_floor, found.rounding_floor) == (1 / 8, 3 / 8, None)
    assert found.digests == two_results(mine).digests()


@pytest.mark.parametrize(
    ("other", "is_equal"),
    [
        ({"a": torch.tensor([0.0, float("nan")]), "b": None}, True),
        ({"b": None, "a": torch.tensor([0.0, float("nan")])}, False),
        ({"a": None, "b": None}, False),
        ({"a": torch.tensor([-0.0, float("nan")]), "b": None}, False),
        ({"a": torch.tensor([0.0, 2.0]), "b": None}, False),
        ({"a": torch.tensor([[0.0, float("nan")]]), "b": None}, False),
        ({"a": torch.tensor([0.0, float("nan")]).view(torch.int32), "b": None}, False),
        ({"a": torch.tensor([0.0, float("nan")]).to_sparse(), "b": None}, True),
    ],
)
def test_bits_are_equal_where_names_shapes_types_and_values_are(other, is_equal):
    tensors = {"a": torch.tensor([0.0, float("nan")]), "b": None}

    assert equality.equal_bits(tensors, other) is is_equal
    assert (equality.digest_of(tensors) == equality.digest_of(other)) is is_equal


def test_rounding_is_what_the_last_bit_of_the_weights_makes_of_the_first_run():
    mine, runs = {"a": [8.0, 5.0]}, ({"a": [8.0, 4.0]}, {"a": [8.0, 4.0]})

    found = equality.verify(steps(mine, mine), steps(*runs), {}, nudged=step({"a": [8.0, 2.0]}))
    unmoved = equality.verify(steps(mine), steps(*runs), {}, nudged=step({"a": [8.0, 4.0]}))

    assert (found.rounding_floor, found.noise_floor) == (0.25, 0.0)
    assert unmoved.rounding_floor == 0.0


@pytest.mark.parametrize(("group", "noise", "worst_step"), [(Group(), 1 / 8, 1), (Two(), 1 / 7, 2)])
def test_second_steps_have_the_weights_of_one_update_but_those_of_ranks_of_their_own(group, noise, worst_step):
    """The first steps are an eighth apart; the second have weights of -7 and -1, or -2 and -3."""
    runs, mine = ({"a": [8.0, 2.0]}, {"a": [8.0, 3.0]}), {"a": [8.0, 4.0]}

    floor = equality.noise_floor(steps(*runs), group)
    found = equality.verify(steps(mine, mine), steps(*runs), {}, group=group)

    assert (floor.noise_floor, floor.worst_step, found.noise_floor) == (noise, worst_step, noise)
    assert (found.largest_difference, found.worst_step) == (noise, worst_step)


def test_a_nudge_moves_every_weight_to_its_neighbour_upwards_and_to_zero_by_turns():
    workload = left({"a": None, "b": None, "c": None}).workload
    whole = nn.Parameter(torch.tensor([1, 2]), requires_grad=False)
    workload.module.register_parameter("d", whole)

    equality.nudge(workload)

    last_bit = 2.0**-23
    assert workload.module.a.tolist() == workload.module.c.tolist() == [1 + last_bit] * 2
    assert workload.module.b.tolist() == [1 - last_bit / 2] * 2
    assert whole.tolist() == [1, 2]


def test_a_step_tells_something_where_a_gradient_is_finite_and_not_zero():
    nothing = [[0.0, 0.0], [float("nan"), float("inf")], None]
    something = [[0.0, 1.0], [float("nan"), 1.0]]

    told = [equality.tells(equality.gradients_of(left({"a": one}).workload).values()) for one in (*nothing, *something)]

    assert told == [False, False, False, True, True]
    assert equality.is_rounding(msgspec.structs.replace(EQUAL, largest_difference=2.0**-12))  # the last bit's root
    assert not equality.is_rounding(msgspec.structs.replace(EQUAL, largest_difference=2.0**-11.9))
    assert not equality.is_rounding(msgspec.structs.replace(EQUAL, missing=("head.weight",)))


@pytest.mark.parametrize(
    ("fields", "strict", "reason"),
    [
        ({}, True, None),
        ({"gradients_equal": False, "largest_difference": 4e-3, "noise_floor": 1e-3}, False, None),
        ({"loss_equal": False, "largest_difference": 4e-3, "rounding_floor": 1e-3}, False, None),
        (
            {"gradients_equal": False, "largest_difference": 4e-3, "noise_floor": 1e-3, "worst_parameter": "a"},
            True,
            "gradients differ by 4.0e-03, worst in a; two runs without checkpointing differ by 1.0e-03",
        ),
        ({"missing": tuple("abcd"), "num_gradients": 7}, False, "4 of 7 parameters have no gradient: a, b, c, ..."),
        ({"ranks_difference": 4e-7, "noise_floor": 1e-7}, False, None),
        (
            {"ranks_difference": 5e-7, "noise_floor": 1e-7},
            False,
            "gradients differ by 5.0e-07 from the mean of those of one process with all ranks' batches",
        ),
    ],
)
def test_why_gradients_do_not_count(fields, strict, reason):
    assert judge(msgspec.structs.replace(EQUAL, **fields), strict=strict) == reason
    assert judge(None, strict=strict) == ("not verified: there is nothing to compare with" if strict else None)


# --- several ranks


def test_ranks_are_equal_where_all_are_and_differ_as_the_worst_of_them_does():
    worse = msgspec.structs.replace(
        EQUAL,
        gradients_equal=False,
        largest_difference=0.5,
        worst_parameter="b",
        missing=("c",),
        buffers_difference=0.1,
    )
    first = results({"a": [4.0, 0.0]}), results({"a": [3.0, 0.0]})

    found = equality.compared(*first, Two(lambda found: worse))
    alike = equality.compared(*first, Two())

    assert (found.largest_difference, found.worst_parameter, found.missing) == (0.5, "b", ("c",))
    assert (found.loss_equal, found.gradients_equal, found.buffers_difference) == (True, False, 0.1)
    assert (alike.largest_difference, alike.missing, alike.buffers_difference) == (0.25, (), None)
    assert equality.compared(first[0], first[0], Two(lambda found: worse)).gradients_equal is False


def test_the_digests_of_ranks_are_of_all_of_them_in_order_and_the_noise_is_that_of_the_noisiest():
    mine, other = results({"a": [1.0, 1.0]}).digests(), results({"a": [2.0, 2.0]}).digests()
    noisier = msgspec.structs.replace(EQUAL, gradients_equal=False, largest_difference=0.5)

    def found(own, second):
        group = Two(lambda found: second if isinstance(found, dict) and "loss" in found else noisier)
        return equality.noise_floor(step({"a": [own, own]}), group)

    forth, back = found(1.0, other), found(2.0, mine)
    assert (forth.noise_floor, forth.gradients_equal) == (0.5, False)
    assert forth.digests["gradients"] != back.digests["gradients"]
    assert forth.digests["gradients"] not in (mine["gradients"], other["gradients"])
    assert forth.digests["loss"] == back.digests["loss"]


# --- the pass


class Scripted:
    """A bench whose steps leave what is written down, by case, or by rank; it keeps the notes."""

    def __init__(self, case, script, *, digests=None, applied=None, group=None, of_rank=None):
        self.trial = SimpleNamespace(case=case, digests=digests, passes=("equality",))
        self.step_digests, self.group, self.notes, self.begun = None, group or Group(), {}, []
        self._script, self._applied, self._of_rank = script, applied, of_rank

    def begin(self, name):
        self.begun.append(name)

    def note(self, code, text):
        assert re.fullmatch(r"GCP\d{3}", code)
        self.notes[code] = text

    def extra(self, what, run, *, is_local=False):
        """As that of a trial: what fails in one rank alone decides nothing. A note says that `what` is not known."""
        assert re.match(r"(whether|how far|why) ", what)
        try:
            return run()
        except LookupError:
            if self.group.mesh and not is_local:
                raise
            return None

    def build(self, case=None, rank=None):
        case = case or self.trial.case
        ran = self._script(case) if rank is None else self._of_rank(rank)
        trainer = SimpleNamespace(step=lambda: None)
        return SimpleNamespace(
            case=case, workload=ran.workload, applied=self._applied or applied(), ran=ran,
            trainer=lambda: (trainer, None),
        )  # fmt: skip

    build_unwatched = build

    def gradients(self, built, *, number=1):
        loss = built.ran.again()
        return built.ran.loss if number == 1 else loss


@pytest.fixture(autouse=True)
def the_baseline_is_right(monkeypatch):
    """The losses that are written down have no slope: tests/test_silent_errors.py holds the judge to those that do."""
    monkeypatch.setattr(wrong_gradients, "side", lambda built, first, second: "first")
    monkeypatch.setattr(equality_pass, "updated_again", lambda workload, applied: False)


def applied(reference=None, *, changes_kernels=False):
    return SimpleNamespace(reference=reference, changes_kernels=changes_kernels, rounds=False, draws_apart=False)


ZERO, BOTH = {"a": [0.0, 0.0]}, {"bf16": {"a": [4.0, 1.0]}, "fp32": {"a": [4.0, 2.0]}}


@pytest.mark.parametrize(
    ("precision", "gradients", "frozen", "difference", "notes"),
    [
        ("fp32", {"a": [1.0, 1.0]}, (), None, {}),
        ("bf16", BOTH, (), 0.25, {"GCP013": "in bf16 the gradients differ by 2.5e-01 from those in fp32"}),
        ("bf16", {**BOTH, "bf16": ZERO}, (), 1.0, {
            "GCP013": "in bf16 the gradients differ by 1.0e+00 from those in fp32",
            "GCP014": "all gradients are zero or not finite, so comparing them proves nothing",  # in its own precision
        }),
        ("fp32", {"a": None, "b": None}, ("a", "b"), None, {"GCP014": equality_pass.UNTRAINED}),
    ],
)  # fmt: skip
def test_the_baseline_is_compared_with_itself_and_with_fp32(precision, gradients, frozen, difference, notes):
    bench = Scripted(
        make.case(precision=precision), lambda case: left(gradients.get(case.precision, gradients), frozen=frozen)
    )

    found, reason = equality_pass.compare(bench)

    assert (found.noise_floor, found.precision_difference, reason) == (0.0, difference, None)
    told = {code: text for code, text in bench.notes.items() if code != "GCP045"}  # which parameters have none
    assert (bench.begun, told) == (["equality"], notes)


@pytest.mark.parametrize("verify", ["auto", "strict"])
def test_without_a_result_of_the_baseline_only_a_strict_trial_is_invalid(verify):
    bench = Scripted(make.case("all", verify=verify), never)

    found, reason = equality_pass.compare(bench)

    assert (found, reason is None, *bench.notes) == (None, verify == "auto", "GCP003")


def test_a_trial_that_does_not_compare_says_so_and_reads_all_that_it_was_asked():
    case = make.case("all", model=Choice("mlp"), batch_size=4, verify="off")

    record = measure(Trial(case=case, passes=("memory", "equality", "flops")))

    assert "GCP006" in {note.code for note in record.notes}
    assert record.readings.saved_bytes
    assert record.readings.forward_flops


REFERENCE, ROUNDS = Choice("every:k=2"), "rounds differently, by 2.5e-05,"
LAST_BIT = pytest.approx(2.0**-23)  # of weights of 1


@pytest.mark.parametrize(
    ("none", "compiled", "found", "note"),
    [
        (2.0, applied(), ("none", 0.25, None), None),  # not compiled: invalid
        (3.0, applied(REFERENCE, changes_kernels=True), ("none", 0.5, LAST_BIT), None),  # by more than rounding
        (1.0001, applied(REFERENCE, changes_kernels=True), ("every:k=2", None, LAST_BIT), ROUNDS),
        (3.0, applied(REFERENCE), ("every:k=2", None, None), "draws different random numbers"),
    ],
)
def test_other_gradients_are_invalid_but_compiled_code_is_compared_with_what_it_names(none, compiled, found, note):
    def script(case):
        if note and "draws" in note:
            torch.manual_seed(0 if case.strategy.name == "none" else 1)
        return left({"a": [4.0, none if case.strategy.name == "none" else 1.0]})

    bench = Scripted(make.case("all"), script, digests={}, applied=compiled)

    result, reason = equality_pass.compare(bench)

    assert (result.against, result.largest_difference, result.rounding_floor) == found
    assert (result.gradients_equal, reason is None) == (bool(note), bool(note))
    assert bench.notes == ({"GCP011": f"compared with every:k=2: compiled code {note} than `none`"} if note else {})


@pytest.mark.parametrize(
    ("fields", "said", "cause"),
    [
        ({}, "differ by 5.0e-01 (a, _u): BatchNorm", ": the recompute changes 0.calls, _u again"),
        ({"noise_floor": 1e-5}, "--repair-batchnorm mends it", ": the recompute changes 0.calls again"),  # maybe noise
        ({"buffers_difference": 1e-6, "moved": ()}, "equal except for rounding (1.0e-06)", ""),
        ({"buffers_difference": 1e-6, "moved": (), "differing_buffers": ("a", "0.bn.num_batches_tracked")},
         "rounding (1.0e-06) and BatchNorm's count of its batches", ""),
    ],
)  # fmt: skip
def test_buffers_that_differ_are_said_and_are_the_reason_where_the_recompute_changes_them(
    monkeypatch, fields, said, cause
):
    wrong = {"gradients_equal": False, "largest_difference": 0.5, "noise_floor": 0.0, "buffers_difference": 0.5}
    fields = {**wrong, "differing_buffers": ("a", "_u"), "moved": ("0.calls",), "buffers_equal": False, **fields}
    found = msgspec.structs.replace(EQUAL, **fields)
    monkeypatch.setattr(equality_pass, "updated_again", lambda workload, applied: True)
    monkeypatch.setattr(equality_pass, "batch_statistics", lambda module: {"a", "b", "c", "num_batches_tracked"})
    monkeypatch.setattr(equality, "verify", lambda *arguments, **keywords: found)
    bench = Scripted(make.case("all"), lambda case: left({"a": [1.0, 1.0]}), digests={})

    _, reason = equality_pass.compare(bench)

    floor = found.noise_floor
    assert said in bench.notes["GCP004"]
    assert reason == f"gradients differ by 5.0e-01; two runs without checkpointing differ by {floor:.1e}{cause}"


@pytest.mark.parametrize("has_same_batch", [True, False])
@pytest.mark.parametrize(
    ("own", "of_two", "found"),
    [
        ([4.0, 0.0], ([4.0, 0.0], [4.0, 4.0]), (0.5, LAST_BIT, "a")),
        ([2.0, 3.0], ([1.0, 3.0], [3.0, 3.0]), (0.0, None, None)),
        ([4.0, 0.0], ([4.0, 0.0],), (None, None, None)),  # the second fails
    ],
)
def test_the_baseline_of_ranks_is_held_to_the_mean_of_one_process_that_runs_their_batches(
    has_same_batch, own, of_two, found
):
    """Each keeps its own loss; where a parameter has no gradient, there is no mean."""
    bench = Scripted(
        make.case(ranks=2),
        lambda case: left({"a": own, "b": None}, loss=0.0),
        group=Two(lambda one: "another" if isinstance(one, str) and not has_same_batch else one),
        of_rank=lambda rank: left({"a": of_two[rank], "b": None}, loss=float(rank)),
    )

    result, reason = equality_pass.compare(bench)

    assert (result.ranks_difference, result.rounding_floor, result.worst_parameter) == found
    assert ("from the mean" in (reason or "")) is bool(found[0])
    assert ("GCP035" in bench.notes) is has_same_batch


DIFFERS = {"gradients_equal": False, "largest_difference": 0.5, "worst_step": 1, "noise_floor": 0.0}
LITTLE = {"largest_difference": 1e-9, "noise_floor": 1e-9}
LOST = {"missing": ("a",), "num_gradients": 2}


@pytest.mark.parametrize(
    ("fields", "how", "side", "said"),
    [
        ({}, {}, "first", r"0\.0e\+00; .*it moved"),
        ({"moved": tuple("abcd")}, {}, "second", "changes a, b, c and 1 more again; it is `none` that is wrong: [^;]*"),
        ({"moved": ("a",)}, {}, "first", "changes a again"),
        ({"moved": ("a",)}, {}, "neither", "agree with neither"),
        ({"random_sources": ("torch", "numpy")}, {}, None, "numbers from numpy; .*do not settle which is right"),
        ({"worst_step": 2}, {}, "second", r"differ by 0\.0e\+00"),  # the first agrees: neither is looked for
        (LOST, {}, "second", "1 of 2 parameters have no gradient: a"),
        ({"noise_floor": 0.2}, {}, "second", "kernels that are not deterministic"),
        ({"noise_floor": 0.2, **LOST}, {}, "second", "have no gradient: a"),
        (LITTLE, {}, "second", None),
        (LITTLE, {"verify": "strict"}, "second", r"1\.0e-09; .*it moved"),
        ({}, {"precision": "bf16"}, "second", None),  # as near to those of `none` as those are to fp32's
        ({}, {"precision": "bf16", "verify": "strict"}, "second", "it moved"),
    ],
)
def test_why_gradients_of_a_first_step_differ_is_looked_for_unless_it_is_known(monkeypatch, fields, how, side, said):
    rounding = applied()
    rounding.rounds = True
    found = msgspec.structs.replace(EQUAL, **{**DIFFERS, "random_state_equal": False, **fields})
    monkeypatch.setattr(equality, "verify", lambda *arguments, **keywords: found)
    monkeypatch.setattr(equality_pass, "what_moves", lambda workload, _: workload.module and "it moved")
    monkeypatch.setattr(wrong_gradients, "side", lambda built, first, second: side)
    bench = Scripted(make.case("all", **how), lambda case: left({"a": [1.0, 1.0]}), digests={}, applied=rounding)

    _, reason = equality_pass.compare(bench)

    assert re.search(f"{said}$", reason) if said else reason is None
    assert ("numpy" in bench.notes["GCP005"]) is ("random_sources" in fields)
    moved = {0: "", 1: "a", 4: "a, b, c, ..."}[len(fields.get("moved", ()))]
    assert bench.notes.get("GCP049", "").partition(":")[0] == moved
    assert ("GCP072" in bench.notes) is (how == {"precision": "bf16"})
