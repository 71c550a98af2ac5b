"""Which operators training steps use, by family, under the names of PyTorch's samples: knows nothing of torch."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


UNARY = _words("""
    abs ceil clone contiguous cos erf exp floor log log1p neg reciprocal rsqrt sigmoid sign sin sqrt square tanh
    trunc zeros_like ones_like isnan isfinite nan_to_num
""")
ACTIVATIONS = _words("""
    relu relu6 leaky_relu elu celu selu silu mish gelu softplus softsign hardswish hardsigmoid hardtanh logsigmoid
    tanhshrink
""")
BINARY = _words("""
    add sub mul div true_divide pow maximum minimum atan2 eq ne lt le gt ge where
""")
REDUCING = _words("""
    sum mean var std var_mean std_mean amax amin prod nansum logsumexp norm all any
""")
ONE_DIMENSION = "prod", "all", "any", "norm"
ALONG = _words("""
    cumsum cumprod argmax argmin sort argsort softmax log_softmax flip
""")
PRODUCTS = _words("""
    matmul mm bmm addmm baddbmm addbmm mv dot inner outer einsum tensordot nn.functional.linear
""")
MOVING = _words("""
    cat stack chunk split split_with_sizes unbind hstack vstack column_stack gather scatter scatter_add index_select
    index_add index_put index_copy index_fill __getitem__ masked_fill take_along_dim roll repeat repeat_interleave
    tile permute transpose t reshape view flatten expand squeeze unsqueeze narrow select slice slice_scatter unfold
    movedim tril triu clamp clamp_min clamp_max lerp addcmul addcdiv float half bfloat16 to topk fill zero_
    new_zeros new_full constant_pad_nd diff cross __radd__ __rmul__ __rsub__ __rdiv__ rsub meshgrid.list_of_tensors
""")
VARIANTS = _words("""
    max.binary max.reduction_no_dim max.reduction_with_dim min.binary min.reduction_no_dim min.reduction_with_dim
    var.unbiased std.unbiased div.no_rounding_mode softmax.with_dtype log_softmax.with_dtype linalg.vector_norm
    linalg.norm native_layer_norm native_batch_norm
""")
FUNCTIONAL = _words("""
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d avg_pool1d
    avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d batch_norm batch_norm.without_cudnn layer_norm group_norm
    instance_norm rms_norm local_response_norm normalize conv1d conv2d conv3d conv_transpose1d conv_transpose2d
    conv_transpose3d pad.constant pad.reflect pad.replicate interpolate.nearest interpolate.linear
    interpolate.bilinear interpolate.bicubic interpolate.trilinear interpolate.area upsample_bilinear
    upsample_nearest unfold glu prelu cross_entropy nll_loss binary_cross_entropy binary_cross_entropy_with_logits
    l1_loss mse_loss smooth_l1_loss huber_loss kl_div hinge_embedding_loss margin_ranking_loss soft_margin_loss
    gaussian_nll_loss poisson_nll_loss triplet_margin_loss cosine_embedding_loss cosine_similarity pairwise_distance
    embedding one_hot dropout dropout2d scaled_dot_product_attention pixel_shuffle pixel_unshuffle channel_shuffle
    grid_sample multi_head_attention_forward
""")
COMMON = frozenset(
    [*UNARY, *BINARY, *REDUCING, *ALONG, *PRODUCTS, *MOVING, *VARIANTS]
    + [f"nn.functional.{one}" for one in (*ACTIVATIONS, *FUNCTIONAL)]
)
