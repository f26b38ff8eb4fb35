#include "store/reader.h"

#include <assert.h>
#include <string.h>

#include "base/plat.h"
#include "store/reader_internal.h"

struct op_span op_span_of(const struct read_op *op, char *bounce)
{
    const uint64_t any = (uint64_t)(uintptr_t)op->dst | op->offset | op->bytes;
    if (!op->is_direct || any % MEM_PAGE == 0)
        return (struct op_span){.at = op->dst, .offset = op->offset, .bytes = op->bytes};
    const uint64_t skip = op->offset % MEM_PAGE;
    return (struct op_span){.at = bounce, .offset = op->offset - skip,
                            .bytes = mem_round_up(skip + op->bytes, MEM_PAGE), .skip = skip};
}

int64_t op_span_read(const struct read_op *op, const struct op_span *span, uint64_t done)
{
    assert(done <= span->bytes);
    int64_t (*read)(int, void *, uint64_t, uint64_t) =
        op->is_direct && done % MEM_PAGE == 0 ? plat_read_device : plat_read_some;
    int64_t got = read(op->fd, span->at + done, span->bytes - done, span->offset + done);
    return got < 0 ? got : got + (int64_t)done;
}

int64_t op_span_finish(const struct read_op *op, const struct op_span *span, int64_t result)
{
    assert(result <= (int64_t)span->bytes && span->skip + op->bytes <= span->bytes);
    if (result < 0 || span->at == op->dst)
        return result;
    uint64_t got = (uint64_t)result > span->skip ? (uint64_t)result - span->skip : 0;
    got = got < op->bytes ? got : op->bytes;
    memcpy(op->dst, span->at + span->skip, (size_t)got);
    return (int64_t)got;
}

int reader_check_options(const struct reader_options *options, struct fm_error *err)
{
    if (options->depth >= 1 && options->depth <= READER_MAX_DEPTH)
        return 0;
    return err_set(err, FM_ERR_ARG, "%u concurrent reads requested, expected 1 to %d",
                   options->depth, READER_MAX_DEPTH);
}

uint64_t reader_bounce_bytes(const struct reader_options *options)
{
    return options->bounce_bytes > 0
               ? mem_round_up(options->bounce_bytes, MEM_PAGE) + 2 * (uint64_t)MEM_PAGE
               : 0;
}

uint64_t reader_bytes(const struct reader_options *options)
{
    return options->depth * reader_bounce_bytes(options);
}
