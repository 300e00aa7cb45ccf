/* A switch between the network namespaces of hosts.py: each link (one direction) has a delay, a loss, a rate and a cut.

   switch PID...    The PID's network namespace gets the device eth0, the other end of which is here. Host i of them has
   the address 10.77.0.i (from 1). Standard input has one command a line, each of which is answered by a line, "ok" once
   it is in force: delay I J MS, loss I J SHARE, rate I J MBIT (0: no limit), cut I J 0|1, offload 0|1, sent I J, which
   answers with numbers of packets and bytes. At its end, the switch ends, and the devices go. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define HOSTS 9
#define HEADER 10                             /* of virtio: where segments and checksums of a large frame begin */
#define FRAME (HEADER + 65536 + 64)           /* the kernel passes several packets of a stream as one frame */
#define QUEUE_BYTES (64L << 20)               /* of a link, as a router's memory; what comes then is dropped */
#define LONGEST_WAIT_NS 400000000L            /* of a link with a rate: a router's buffer of 0.4 s */

typedef struct Packet { struct Packet *next; int64_t due; int size; unsigned char bytes[]; } Packet;
typedef struct {
    Packet *first, *last;
    int64_t waiting, delay_ns, free_at;
    double loss, bytes_per_s;
    int cut;
    unsigned long packets, bytes;
} Link;

static Link links[HOSTS][HOSTS];
static int devices[HOSTS], hosts;

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void fail(const char *what) { perror(what); exit(1); }

static void set_offload(int on) {
    for (int i = 0; i < hosts; i++)
        if (ioctl(devices[i], TUNSETOFFLOAD, on ? TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 : 0)) fail("TUNSETOFFLOAD");
}

static int open_device(const char *pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%s/ns/net", pid);
    int space = open(path, O_RDONLY | O_CLOEXEC);
    if (space < 0 || setns(space, CLONE_NEWNET)) fail(path);
    close(space);
    int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC), size = HEADER;
    struct ifreq request = {.ifr_name = "eth0", .ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR};
    if (device < 0 || ioctl(device, TUNSETIFF, &request) || ioctl(device, TUNSETVNETHDRSZ, &size)) fail("/dev/net/tun");
    return device;
}

static void put(Link *link, const unsigned char *bytes, int size, int to) {
    if (link->cut || (link->loss > 0 && drand48() < link->loss)) return;
    link->packets++, link->bytes += size - HEADER;
    if (!link->delay_ns && !link->bytes_per_s && !link->first) {
        if (write(devices[to], bytes, size) < 0) return; /* its host's buffer is full: a drop, as on any network */
        return;
    }
    int64_t at = now(), leaves = at;
    if (link->bytes_per_s > 0) {
        if (link->free_at > leaves) leaves = link->free_at;
        leaves += (int64_t)((size - HEADER) * 1e9 / link->bytes_per_s);
    }
    if (link->waiting > QUEUE_BYTES || leaves - at > LONGEST_WAIT_NS) return;
    link->free_at = leaves;
    Packet *packet = malloc(sizeof *packet + size);
    if (!packet) fail("malloc");
    *packet = (Packet){.due = leaves + link->delay_ns, .size = size};
    memcpy(packet->bytes, bytes, size);
    if (link->last) link->last->next = packet; else link->first = packet;
    link->last = packet;
    link->waiting += size;
}

/* Pass on what is due; return when the next packet is due. */
static int64_t pass_on(void) {
    int64_t at = now(), next = at + 1000000000L;
    for (int i = 0; i < hosts; i++)
        for (int j = 0; j < hosts; j++) {
            Link *link = &links[i][j];
            for (Packet *packet; (packet = link->first) && packet->due <= at; free(packet)) {
                if (!(link->first = packet->next)) link->last = NULL;
                link->waiting -= packet->size;
                /* What was under way when its link was cut is lost, too. */
                if (!link->cut && write(devices[j], packet->bytes, packet->size) < 0) continue;
            }
            if (link->first && link->first->due < next) next = link->first->due;
        }
    return next;
}

static void receive(int from) {
    static unsigned char bytes[FRAME];
    for (int burst = 0; burst < 64; burst++) {
        int size = read(devices[from], bytes, sizeof bytes);
        if (size < HEADER + 20) return;
        const unsigned char *packet = bytes + HEADER;
        int to = packet[19] - 1; /* the last byte of an IPv4 packet's target */
        if (packet[0] >> 4 != 4 || packet[16] != 10 || packet[17] != 77 || to < 0 || to >= hosts || to == from) continue;
        put(&links[from][to], bytes, size, to);
    }
}

static void obey(const char *line) {
    int i, j;
    double value;
    char what[16];
    if (sscanf(line, "offload %d", &i) == 1) {
        set_offload(i);
    } else if (sscanf(line, "%15s %d %d", what, &i, &j) == 3 && i >= 1 && i <= hosts && j >= 1 && j <= hosts) {
        Link *link = &links[i - 1][j - 1];
        if (!strcmp(what, "sent")) { printf("%lu %lu\n", link->packets, link->bytes); return; }
        if (sscanf(line, "%*s %*d %*d %lf", &value) != 1) { printf("no number: %s\n", line); return; }
        if (!strcmp(what, "delay")) link->delay_ns = value * 1e6;
        else if (!strcmp(what, "loss")) link->loss = value;
        else if (!strcmp(what, "rate")) link->bytes_per_s = value * 1e6 / 8;
        else if (!strcmp(what, "cut")) link->cut = value != 0;
        else { printf("unknown: %s\n", line); return; }
    } else { printf("unknown: %s\n", line); return; }
    puts("ok");
}

int main(int count, char **pids) {
    hosts = count - 1;
    if (hosts < 2 || hosts > HOSTS) return fprintf(stderr, "usage: switch PID PID...\n"), 2;
    for (int i = 0; i < hosts; i++) devices[i] = open_device(pids[i + 1]);
    set_offload(1);
    srand48(7);
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ok");
    char line[200];
    int length = 0;
    for (;;) {
        int64_t wait = pass_on() - now();
        struct timespec until = {wait > 0 ? wait / 1000000000L : 0, wait > 0 ? wait % 1000000000L : 0};
        struct pollfd watched[HOSTS + 1];
        for (int i = 0; i < hosts; i++) watched[i] = (struct pollfd){.fd = devices[i], .events = POLLIN};
        watched[hosts] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
        if (ppoll(watched, hosts + 1, &until, NULL) < 0 && errno != EINTR) fail("ppoll");
        for (int i = 0; i < hosts; i++) if (watched[i].revents) receive(i);
        if (!watched[hosts].revents) continue;
        char byte;
        do {
            if (read(STDIN_FILENO, &byte, 1) != 1) return 0;
            if (byte != '\n' && length < (int)sizeof line - 1) line[length++] = byte;
        } while (byte != '\n');
        line[length] = 0, length = 0;
        obey(line);
    }
}
