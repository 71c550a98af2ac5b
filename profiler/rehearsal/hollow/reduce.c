/* The arithmetic of reductions: in the order of the ranks, in double or 64 bits, rounded once at the end. */
#include "messages.h"
#include <math.h>

#define MAX_FACTORS 1024
static double factors[MAX_FACTORS]; /* of premultiplied sums: those made last */
static unsigned num_factors;

static int is_real(ncclDataType_t type) { return type >= ncclFloat16; }

static double widened(unsigned bits, int exponent, int mantissa) {
    int power = (int)(bits >> mantissa & ((1u << exponent) - 1)), bias = (1 << (exponent - 1)) - 1;
    unsigned part = bits & ((1u << mantissa) - 1), top = (1u << exponent) - 1;
    double value = power ? ldexp(part | 1u << mantissa, power - bias - mantissa) : ldexp(part, 1 - bias - mantissa);
    if ((unsigned)power == top && exponent != 4) value = part ? NAN : INFINITY; /* e4m3 has no infinity */
    if ((unsigned)power == top && exponent == 4 && part == 7) value = NAN;
    return bits >> (exponent + mantissa) & 1 ? -value : value;
}

static unsigned narrowed(double value, int exponent, int mantissa) { /* to the nearest, ties to even */
    int power, bias = (1 << (exponent - 1)) - 1;
    unsigned sign = (signbit(value) ? 1u : 0u) << (exponent + mantissa), top = ((1u << exponent) - 1) << mantissa;
    unsigned infinite = exponent == 4 ? top | 7 : top, none = exponent == 4 ? top | 7 : top | 1u << (mantissa - 1);
    if (isnan(value)) return sign | none;
    if (isinf(value)) return sign | infinite;
    frexp(value, &power);
    if (--power < 1 - bias || value == 0) power = 1 - bias;
    if (power > bias + 1) return sign | infinite;
    unsigned steps = (unsigned)rint(ldexp(fabs(value), mantissa - power));
    unsigned bits = ((unsigned)(power + bias) << mantissa) + steps - (1u << mantissa);
    return sign | (bits > infinite ? infinite : bits);
}

static Sum loaded(const void *data, size_t i, ncclDataType_t type) {
    switch ((int)type) {
        case ncclInt8: return (Sum){.whole = (uint64_t)((const int8_t *)data)[i]};
        case ncclUint8: return (Sum){.whole = ((const uint8_t *)data)[i]};
        case ncclInt32: return (Sum){.whole = (uint64_t)((const int32_t *)data)[i]};
        case ncclUint32: return (Sum){.whole = ((const uint32_t *)data)[i]};
        case ncclInt64: case ncclUint64: return (Sum){.whole = ((const uint64_t *)data)[i]};
        case ncclFloat16: return (Sum){.real = widened(((const uint16_t *)data)[i], 5, 10)};
        case ncclBfloat16: return (Sum){.real = widened(((const uint16_t *)data)[i], 8, 7)};
        case ncclFloat32: return (Sum){.real = ((const float *)data)[i]};
        case ncclFloat64: return (Sum){.real = ((const double *)data)[i]};
        case ncclBfloat16 + 1: return (Sum){.real = widened(((const uint8_t *)data)[i], 4, 3)}; /* ncclFloat8e4m3 */
        default: return (Sum){.real = widened(((const uint8_t *)data)[i], 5, 2)};
    }
}
static void stored(Sum sum, void *data, size_t i, ncclDataType_t type) {
    switch ((int)type) {
        case ncclInt8: case ncclUint8: ((uint8_t *)data)[i] = (uint8_t)sum.whole; return;
        case ncclInt32: case ncclUint32: ((uint32_t *)data)[i] = (uint32_t)sum.whole; return;
        case ncclInt64: case ncclUint64: ((uint64_t *)data)[i] = sum.whole; return;
        case ncclFloat16: ((uint16_t *)data)[i] = (uint16_t)narrowed(sum.real, 5, 10); return;
        case ncclBfloat16: ((uint16_t *)data)[i] = (uint16_t)narrowed(sum.real, 8, 7); return;
        case ncclFloat32: ((float *)data)[i] = (float)sum.real; return;
        case ncclFloat64: ((double *)data)[i] = sum.real; return;
        case ncclBfloat16 + 1: ((uint8_t *)data)[i] = (uint8_t)narrowed(sum.real, 4, 3); return;
        default: ((uint8_t *)data)[i] = (uint8_t)narrowed(sum.real, 5, 2);
    }
}

static double joined_real(double a, double b, ncclRedOp_t op) {
    switch ((int)op) {
        case ncclProd: return a * b;
        case ncclMax: return isnan(a) || a > b ? a : b;
        case ncclMin: return isnan(a) || a < b ? a : b;
        default: return a + b; /* averages too, and premultiplied sums */
    }
}
static uint64_t joined_whole(uint64_t a, uint64_t b, ncclRedOp_t op, int is_signed) {
    int less = is_signed ? (int64_t)a < (int64_t)b : a < b;
    switch ((int)op) {
        case ncclProd: return a * b;
        case ncclMax: return less ? b : a;
        case ncclMin: return less ? a : b;
        default: return a + b;
    }
}
static int is_signed(ncclDataType_t type) { return type == ncclInt8 || type == ncclInt32 || type == ncclInt64; }

void fold(Sum *sum, const void *data, size_t n, ncclDataType_t type, ncclRedOp_t op, int is_first) {
    int real = is_real(type), sign = is_signed(type);
    for (size_t i = 0; i < n; i++) {
        Sum more = loaded(data, i, type);
        if (is_first) sum[i] = more;
        else if (real) sum[i].real = joined_real(sum[i].real, more.real, op);
        else sum[i].whole = joined_whole(sum[i].whole, more.whole, op, sign);
    }
}

void finish(const Sum *sum, void *out, size_t n, ncclDataType_t type, ncclRedOp_t op, int ranks) {
    for (size_t i = 0; i < n; i++) {
        Sum made = sum[i];
        if (op == ncclAvg && is_real(type)) made.real /= ranks;
        else if (op == ncclAvg && is_signed(type)) made.whole = (uint64_t)((int64_t)made.whole / ranks);
        else if (op == ncclAvg) made.whole /= (uint64_t)ranks;
        stored(made, out, i, type);
    }
}

ncclResult_t make_factor(ncclRedOp_t *op, const void *scalar, ncclDataType_t type) {
    unsigned number = __atomic_fetch_add(&num_factors, 1, __ATOMIC_RELAXED) % MAX_FACTORS;
    Sum factor = loaded(scalar, 0, type);
    factors[number] = is_real(type) ? factor.real : is_signed(type) ? (double)(int64_t)factor.whole : (double)factor.whole;
    return *op = (ncclRedOp_t)(ncclNumOps + number), OK;
}

void *scaled(const void *data, size_t n, ncclDataType_t type, ncclRedOp_t op) {
    if ((int)op < (int)ncclNumOps) return 0;
    double factor = factors[((unsigned)op - ncclNumOps) % MAX_FACTORS];
    void *made = malloc(n * 8);
    for (size_t i = 0; i < n; i++) {
        Sum one = loaded(data, i, type);
        if (is_real(type)) one.real *= factor;
        else one.whole = (uint64_t)((int64_t)one.whole * (int64_t)factor);
        stored(one, made, i, type);
    }
    return made;
}
