/* A rank of another version: src/cluster/join.c is compiled into it with another number. Started by
 * mpirun beside the real program. With a word behind it, it joins MPI and says nothing. */
#include <stdio.h>
#include <unistd.h>

#include "cluster/transport.h"
#include "flashmoe.h"

int main(int argc, char **argv)
{
    struct fm_cluster_options options = {.size = sizeof options};
    struct fm_cluster *cluster = NULL;
    struct transport *transport = NULL;
    struct fm_error err = {0};
    (void)argv;
    if (argc > 1 && transport_open_mpi(&transport, &err) == 0)
        for (;;)
            (void)pause();
    const int rc = fm_cluster_join(&options, &cluster, &err);
    (void)fprintf(stderr, "other_version: %s\n", rc != 0 ? err.text : "it was let in");
    fm_cluster_close(cluster);
    return rc != 0;
}
