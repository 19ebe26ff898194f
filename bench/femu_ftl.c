/*
 * The FTL of FEMU's black-box SSD without QEMU, in virtual time: for bench/peer_femu.py.
 *
 * FEMU delays a guest by modelled latencies. Its FTL gets a request with its arrival time and returns how long it
 * takes, so it can be called directly. It is compiled from a checkout; only names are repeated in this file, which
 * replaces the header nvme.h, as that needs QEMU, by the part that the FTL uses.
 *
 * Arguments: dies, blocks of a die, pages of a block, read, program and erase time in ns, GC threshold in per
 * cent, trace, and a file for results or `-`. A line of the trace: arrival in ns, first sector, sectors, 1 for a
 * read. Results: completion and response in ns as 64-bit integers, request by request. Prints host page writes,
 * pages that GC moved, and victims.
 */

#define __FEMU_NVME_H

#include <assert.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "qemu/queue.h"
#include "hw/femu/inc/pqueue.h"

#define g_malloc0(size) calloc(1, size)
#define QEMU_CLOCK_REALTIME 0
#define QEMU_THREAD_JOINABLE 0
#define qemu_thread_create(thread, name, start, argument, mode) ((void)(start))

enum { NVME_CMD_WRITE = 1, NVME_CMD_READ = 2, NVME_CMD_DSM = 9 };

struct rte_ring;
typedef int QemuThread;

typedef struct NvmeRequest {
    struct { uint8_t opcode; } cmd;
    uint64_t slba;
    uint16_t nlb;
    int64_t stime, reqlat, expire_time;
} NvmeRequest;

typedef struct FemuCtrl {
    struct ssd *ssd;
    struct rte_ring **to_ftl, **to_poller;
    int nr_pollers;
    struct {
        int secsz, secs_per_pg, pgs_per_blk, blks_per_pl, pls_per_lun, luns_per_ch, nchs;
        int pg_rd_lat, pg_wr_lat, blk_er_lat, ch_xfer_lat;
        int gc_thres_pcent, gc_thres_pcent_high;
    } bb_params;
} FemuCtrl;

static int64_t now_ns;

static int64_t qemu_clock_get_ns(int clock)
{
    (void)clock;
    return now_ns;
}

/* The FTL's thread, which takes requests from rings, is not started. */
#define femu_ring_count(ring) 0
#define femu_ring_dequeue(ring, object, count) 0
#define femu_ring_enqueue(ring, object, count) 0

#include "hw/femu/bbssd/ftl.c"

/* Pages programmed since the beginning: those of erased blocks, and those that are not free now. */
static uint64_t programmed(const struct ssd *ssd, uint64_t *erased_blocks)
{
    const struct ssdparams *spp = &ssd->sp;
    uint64_t pages = 0;

    *erased_blocks = 0;
    for (int ch = 0; ch < spp->nchs; ch++) {
        for (int blk = 0; blk < spp->blks_per_pl; blk++) {
            const struct nand_block *block = &ssd->ch[ch].lun[0].pl[0].blk[blk];
            *erased_blocks += block->erase_cnt;
            for (int pg = 0; pg < spp->pgs_per_blk; pg++) {
                pages += block->pg[pg].status != PG_FREE;
            }
        }
    }
    return pages + *erased_blocks * spp->pgs_per_blk;
}

int main(int argc, char **argv)
{
    struct ssd ssd = {0};
    FemuCtrl n = {.ssd = &ssd};
    NvmeRequest request = {0};
    uint64_t host_pages = 0, erased_blocks;
    int sectors, reads;

    if (argc != 10) {
        fprintf(stderr, "nine arguments are needed\n");
        return 2;
    }
    n.bb_params.secsz = 512;
    n.bb_params.secs_per_pg = 8;
    n.bb_params.pls_per_lun = n.bb_params.luns_per_ch = 1;
    n.bb_params.nchs = atoi(argv[1]);
    n.bb_params.blks_per_pl = atoi(argv[2]);
    n.bb_params.pgs_per_blk = atoi(argv[3]);
    n.bb_params.pg_rd_lat = atoi(argv[4]);
    n.bb_params.pg_wr_lat = atoi(argv[5]);
    n.bb_params.blk_er_lat = atoi(argv[6]);
    n.bb_params.gc_thres_pcent = n.bb_params.gc_thres_pcent_high = atoi(argv[7]);
    ssd_init(&n);

    FILE *trace = fopen(argv[8], "r");
    FILE *results = argv[9][0] == '-' ? NULL : fopen(argv[9], "wb");
    if (!trace || (!results && argv[9][0] != '-')) {
        perror("trace or results");
        return 1;
    }
    while (fscanf(trace, "%" SCNd64 " %" SCNu64 " %d %d", &now_ns, &request.slba, &sectors, &reads) == 4) {
        request.nlb = sectors;
        request.stime = now_ns;
        int64_t response_ns = reads ? ssd_read(&ssd, &request) : ssd_write(&ssd, &request);
        host_pages += reads ? 0 : sectors / ssd.sp.secs_per_pg;
        /* As the FTL's thread does after each request. */
        if (should_gc(&ssd)) {
            do_gc(&ssd, false);
        }
        if (results) {
            int64_t row[2] = {now_ns + response_ns, response_ns};
            fwrite(row, sizeof(row), 1, results);
        }
    }
    if (results && fclose(results)) {
        perror("results");
        return 1;
    }
    uint64_t pages = programmed(&ssd, &erased_blocks);
    printf("%" PRIu64 " %" PRIu64 " %" PRIu64 "\n", host_pages, pages - host_pages,
           erased_blocks / ssd.sp.blks_per_line);
    return 0;
}
