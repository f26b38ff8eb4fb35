#include "apps/cli/disk_report.h"

#include <stdio.h>
#include <string.h>

#include "apps/cli/term.h"

static double speed_of(const struct fm_disk_stats *disk)
{
    return disk->busy_ns > 0 ? (double)disk->bytes_read * 1e9 / (double)disk->busy_ns : 0;
}

void disk_report_say(const struct fm_stats *stats)
{
    uint64_t all = 0;
    for (unsigned i = 0; i < stats->n_disks; i++)
        all += stats->disks[i].bytes_read;
    for (unsigned i = 0; i < stats->n_disks; i++) {
        const struct fm_disk_stats *disk = &stats->disks[i];
        char bytes[UNIT_BYTES], rate[UNIT_BYTES], folder[NAME_BYTES];
        say("disk %s: %s of experts (%.0f%%), %s while it was busy%s",
            out_name(disk->folder, folder), human_bytes(disk->bytes_read, bytes),
            all > 0 ? 100.0 * (double)disk->bytes_read / (double)all : 0.0,
            human_rate(speed_of(disk), rate),
            disk->is_lost          ? "; lost: its mirrors are read"
            : stats->is_mirrored   ? ", mirrored"
                                   : "");
    }
}

void disk_report_put(json_t *object, const struct fm_stats *stats)
{
    if (stats->n_disks == 0)
        return;
    json_t *list = json_array();
    for (unsigned i = 0; i < stats->n_disks; i++) {
        const struct fm_disk_stats *disk = &stats->disks[i];
        (void)json_array_append_new(
            list, json_pack("{s:o, s:b, s:b, s:I, s:f, s:f}", "folder",
                            json_text(disk->folder, strlen(disk->folder)), "is_mirrored",
                            (int)stats->is_mirrored, "is_lost", (int)disk->is_lost, "bytes_read",
                            (json_int_t)disk->bytes_read, "busy_s", (double)disk->busy_ns * 1e-9,
                            "gb_per_s", speed_of(disk) * 1e-9));
    }
    (void)json_object_set_new(object, "disks", list);
}

void disk_report_print_few(const struct fm_disk_speeds *speeds)
{
    char one[UNIT_BYTES], two[UNIT_BYTES];
    if (speeds->one.median > 0)
        (void)printf("             %s for one expert at a time, %s for two\n",
                     human_rate(speeds->one.median, one), human_rate(speeds->two.median, two));
}

void disk_report_print_speeds(const struct fm_disk_speeds *speeds)
{
    for (unsigned i = 0; i < speeds->n_disks; i++) {
        const struct fm_disk_speed *disk = &speeds->disks[i];
        char rate[UNIT_BYTES], folder[NAME_BYTES];
        (void)printf("  %-10s %s, %s\n", speeds->is_mirrored ? "mirror" : "part",
                     disk->is_lost ? "lost" : human_rate(disk->read.median, rate),
                     out_name(disk->folder, folder));
    }
}

void disk_report_put_speeds(json_t *object, const struct fm_disk_speeds *speeds)
{
    if (speeds->one.median > 0) {
        (void)json_object_set_new(object, "disk_read_one_gb_per_s",
                                  json_real(speeds->one.median * 1e-9));
        (void)json_object_set_new(object, "disk_read_two_gb_per_s",
                                  json_real(speeds->two.median * 1e-9));
    }
    if (speeds->n_disks == 0)
        return;
    json_t *list = json_array();
    for (unsigned i = 0; i < speeds->n_disks; i++) {
        const struct fm_disk_speed *disk = &speeds->disks[i];
        (void)json_array_append_new(
            list, json_pack("{s:o, s:b, s:b, s:o}", "folder",
                            json_text(disk->folder, strlen(disk->folder)), "is_mirrored",
                            (int)speeds->is_mirrored, "is_lost", (int)disk->is_lost,
                            "read_gb_per_s", disk->is_lost
                                                 ? json_null()
                                                 : json_real(disk->read.median * 1e-9)));
    }
    (void)json_object_set_new(object, "disks", list);
}
