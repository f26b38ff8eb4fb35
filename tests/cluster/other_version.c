/* A rank of another version: src/cluster/join.c is compiled into it with another number. Started by
 * mpirun beside the real program. */
#include <stdio.h>

#include "flashmoe.h"

int main(void)
{
    struct fm_cluster_options options = {.size = sizeof options};
    struct fm_cluster *cluster = NULL;
    struct fm_error err = {0};
    const int rc = fm_cluster_join(&options, &cluster, &err);
    (void)fprintf(stderr, "other_version: %s\n", rc != 0 ? err.text : "it was let in");
    fm_cluster_close(cluster);
    return rc != 0;
}
