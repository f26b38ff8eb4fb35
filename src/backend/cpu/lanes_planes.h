/* Part of lanes.h: codes of affine formats, unpacked from vectors that hold four bytes of each of
 * sixteen rows. The codes of a row are one stream of bits. A unit is the smallest number of codes
 * of b bits that fills whole bytes. Four units are unpacked at a time: plane p has byte p of every
 * unit, so the i-th codes of the units are a field of one plane or of two. Codes come in that
 * order: the first code of each of four units, then the second ones (order_columns). Used by levels
 * that define LEVEL_HAS_COLUMNS (lanes_formats.h). */
#ifndef FLASHMOE_BACKEND_CPU_LANES_PLANES_H
#define FLASHMOE_BACKEND_CPU_LANES_PLANES_H

INLINE vi bytes_of(uint32_t x)
{
    return vi_set1((int32_t)(x * 0x01010101u));
}

/* Extracts bits of every byte: shifts down, then masks. */
INLINE vi field(vi x, unsigned shift, uint32_t mask)
{
    return vi_and(shift == 0 ? x : vi_srl(x, shift), bytes_of(mask));
}

/* The bytes 3u + p of three vectors, in the order u = 0, 3, 2, 1. */
INLINE void planes_of_3(const vi x[3], vi out[3])
{
    out[0] = vi_select(0xff0000ffu, x[0], vi_select(0x00ff0000u, x[1], x[2]));
    out[1] = vi_rol(vi_select(0xff0000ffu, x[1], vi_select(0x0000ff00u, x[0], x[2])), 24);
    out[2] = vi_rol(vi_select(0xff0000ffu, x[2], vi_select(0x00ff0000u, x[0], x[1])), 16);
}

/* The bytes 5u + p of five vectors, in the order u = 0, 1, 2, 3. */
INLINE void planes_of_5(const vi x[5], vi out[5])
{
    const uint32_t lower = 0x0000ffffu, even = 0x00ff00ffu;
    out[0] = vi_select(lower, vi_select(even, x[0], x[1]), vi_select(even, x[2], x[3]));
    out[1] = vi_rol(vi_select(lower, vi_select(even, x[4], x[0]), vi_select(even, x[1], x[2])), 24);
    out[2] = vi_rol(vi_select(lower, vi_select(even, x[3], x[4]), vi_select(even, x[0], x[1])), 16);
    out[3] = vi_rol(vi_select(lower, vi_select(even, x[2], x[3]), vi_select(even, x[4], x[0])), 8);
    out[4] = vi_select(lower, vi_select(even, x[1], x[2]), vi_select(even, x[3], x[4]));
}

/* Extracts `bits` bits from two neighbouring planes, from bit `from` on. */
INLINE vi split_field(vi plane, vi next, unsigned from, unsigned bits)
{
    const uint32_t here = ((1u << (8 - from)) - 1) * 0x01010101u;
    return field(vi_select(here, vi_srl(plane, from), vi_sll(next, 8 - from)), 0,
                 (1u << bits) - 1);
}

/* Codes in a unit, and vectors of packed bytes in four units. */
INLINE unsigned unit_codes(unsigned bits)
{
    return bits == 8 ? 1 : bits == 4 ? 2 : bits % 2 == 0 ? 4 : 8;
}

/* Brings the packed bytes of four units into planes. */
INLINE void planes_of(const vi *x, unsigned bits, vi planes[5])
{
    if (unit_codes(bits) * bits == 24)
        planes_of_3(x, planes);
    else if (bits == 5)
        planes_of_5(x, planes);
    else
        planes[0] = x[0];
}

/* Returns the i-th codes of four units. */
INLINE vi plane_codes(const vi *planes, unsigned bits, unsigned i)
{
    const unsigned p = bits * i / 8, from = bits * i % 8;
    return bits == 8          ? planes[p]
           : from + bits <= 8 ? field(planes[p], from, (1u << bits) - 1)
                              : split_field(planes[p], planes[p + 1], from, bits);
}

#endif
