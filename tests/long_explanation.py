"""An explanation with names that are longer than any screen."""

import msgspec

from profiler.analysis.explanation import Explanation, Reason, Remedy
from profiler.analysis.live_bytes import Floor, Peak, Share
from profiler.core.trace_data import BUCKETS, CATEGORIES, GATHERED, BlockChoice, BlockChoices
from profiler.views.tables.explanation import REMEDIES

OF_RANKS = (BUCKETS, GATHERED)  # whose steps are not explained


def longest() -> Explanation:
    name = "model.decoder.layers.{}.self_attention.projection.that.goes.on"
    shares = tuple(Share(name=name.format(10 + at), nbytes=2**33 + at) for at in range(10))
    work = "aten._scaled_dot_product_efficient_attention_backward.default"
    least = Floor(nbytes=2**36, static_bytes=2**35, stage=name, phase="backward", operator=work, module=name)
    text = (
        "one segment dominates: 'encoder.layers.encoder_layer_10' to 'encoder.layers.encoder_layer_110', 101 of 128"
        " blocks, are recomputed at once and hold 1,021 MiB of the peak's 1,022 MiB"
    )
    coarse = BlockChoice(pattern="model.decoder.layers.*", num_blocks=128, floor_bytes=2**36, all_bytes=2**37 - 1)
    fine = msgspec.structs.replace(coarse, pattern="model.decoder.layers.*.self_attention", all_bytes=2**36)
    return Explanation(
        peak=Peak(nbytes=2**37 - 1, number=9, phase="recompute", operator=work, module=name),
        categories=tuple(Share(name=category, nbytes=2**35) for category in CATEGORIES if category not in OF_RANKS),
        modules=shares,
        num_others=1234,
        others_bytes=2**34,
        floor=least,
        remedies=tuple(Remedy(kind=kind, nbytes=1021 * 2**20) for kind in REMEDIES),
        choices=BlockChoices(own=coarse, others=(fine,)),
        better=fine,
        operator_bytes=2**34,
        baseline_bytes=2**38,
        split="1+2+3+4+5+6+7+8+9+10+11+12+13+14+15+16+17",
        reason=Reason(kind="segment", text=text),
    )
