"""An explanation fits a small screen, says what it must, and is one JSON document."""

import json

from profiler.analysis.explanation import Explanation, Remedy, explain
from profiler.analysis.floor import Floor
from profiler.analysis.live_bytes import Peak, Share
from profiler.analysis.reasons import Reason
from profiler.core.trace_data import CATEGORIES
from profiler.views.tables.explanation import REMEDIES, document, explanation
from tests.traced import SMALL, by_hand, traced


def test_the_longest_explanation_fits_a_small_screen():
    text = explanation(longest(), title="a title that is far too long " * 8, width=80).plain

    assert len(text.splitlines()) <= 25
    assert max(map(len, text.splitlines())) <= 80


def test_the_longest_explanation_fits_where_only_ascii_can_be_printed():
    text = explanation(longest(), title="t" * 200, width=80, encoding="ascii").plain

    assert text.isascii()
    assert len(text.splitlines()) <= 25


def longest() -> Explanation:
    name = "model.decoder.layers.{}.self_attention.projection.that.goes.on"
    shares = tuple(Share(name=name.format(10 + at), nbytes=2**33 + at) for at in range(10))
    work = "aten._scaled_dot_product_efficient_attention_backward.default"
    least = Floor(nbytes=2**36, static_bytes=2**35, stage=name, phase="backward", operator=work, module=name)
    text = (
        "one segment dominates: 'encoder.layers.encoder_layer_10' to 'encoder.layers.encoder_layer_110', 101 of 128"
        " blocks, are recomputed at once and hold 1,021 MiB of the peak's 1,022 MiB"
    )
    return Explanation(
        peak=Peak(nbytes=2**37 - 1, number=9, phase="recompute", operator=work, module=name),
        categories=tuple(Share(name=category, nbytes=2**35) for category in CATEGORIES),
        modules=shares,
        num_others=1234,
        others_bytes=2**34,
        floor=least,
        remedies=tuple(Remedy(kind=kind, nbytes=1021 * 2**20) for kind in REMEDIES),
        baseline_bytes=2**38,
        split="1+2+3+4+5+6+7+8+9+10+11+12+13+14+15+16+17",
        reason=Reason(kind="segment", text=text),
    )


def test_the_text_names_peak_floor_reason_and_what_is_live():
    baseline, blocks = traced(SMALL)
    found = explain(traced(SMALL, change=lambda workload: None)[0], blocks=blocks, baseline=baseline, split="16")

    text = explanation(found, title="mine").plain

    assert text.startswith("mine\npeak ")
    assert " of none, split 16)" in text
    assert "\nfloor " in text
    assert "\nreason: nothing is recomputed" in text
    assert "saved activations" in text
    assert "blocks.15" in text
    assert "could lower it by: activations on the host" in text


def test_numbers_stand_below_their_unit():
    found = explain(traced(SMALL, batch_size=64)[0], blocks=())

    lines = explanation(found, title="mine", width=80).plain.splitlines()
    head = next(line for line in lines if line.startswith("live at the peak"))
    first = lines[lines.index(head) + 2]

    assert head.index("MiB") + 3 == first.index(".") + 2
    assert head.endswith("MiB")


def test_what_is_outside_of_all_modules_has_a_name():
    trace = by_hand([("optimizer", "")], [(100, 1, 1, "", "optimizer", "temporaries")])

    assert "(outside of all modules)" in explanation(explain(trace, blocks=()), title="mine").plain


def test_the_document_is_json_in_bytes():
    trace = by_hand([("forward", "m")], [(100, 1, 1, "m", "forward", "temporaries")])

    found = json.loads(document(explain(trace, blocks=())))

    assert found["peak"] == {"nbytes": 100, "number": 1, "phase": "forward", "operator": "aten.run", "module": "m"}
    assert found["reason"] is None
    assert found["modules"] == [{"name": "m", "nbytes": 100}]
