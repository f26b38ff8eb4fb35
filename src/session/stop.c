/* Stop strings: the public face of chat/stop_match.h. */
#include "flashmoe.h"
#include "chat/stop_match.h"

/* fm_stop is the matcher itself: only its name is public. */
static struct stop_match *matcher(struct fm_stop *stop)
{
    return (struct stop_match *)stop;
}

int fm_stop_open(const char *const *strings, unsigned n_strings, struct fm_stop **out,
                 struct fm_error *err)
{
    struct stop_match *s;
    int rc = stop_match_open(strings, n_strings, &s, err);
    *out = (struct fm_stop *)s;
    return rc;
}

void fm_stop_close(struct fm_stop *stop)
{
    stop_match_close(matcher(stop));
}

int fm_stop_push(struct fm_stop *stop, const char *text, size_t text_bytes, const char **shown,
                 size_t *shown_bytes, int *found, struct fm_error *err)
{
    return stop_match_push(matcher(stop), text, text_bytes, shown, shown_bytes, found, err);
}

void fm_stop_finish(struct fm_stop *stop, const char **shown, size_t *shown_bytes)
{
    stop_match_finish(matcher(stop), shown, shown_bytes);
}
