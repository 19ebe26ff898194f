/*
 * A VM without an operating system: writes 4 KiB pages at random to its first virtio disk for ever.
 *
 * For `slo-ctl try`, and for tests inside of a guest that is emulated itself: Linux takes minutes to boot there, this a
 * second or two. It is loaded by multiboot (32 bits, no paging) on the machine type `pc`, whose virtio disks have the
 * legacy registers. Its command line ends with `depth=N`, the number of outstanding requests (1 to 64, otherwise 8).
 * It waits for a disk that is plugged in later, and lets go of one that is asked back, by the registers that an
 * operating system's ACPI would use. Says on the console `started`, `disk N` (bytes), `let go`, and `failed` for each
 * error.
 *
 * Multiboot 0.6.96, 3.3; Virtio 1.2, 4.1.4.8 and 2.7 (legacy interface); QEMU's docs/specs/acpi_pci_hotplug.rst.
 */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

enum { DEPTH = 8, DEPTH_MAX = 64, PAGE_BYTES = 4096, SECTOR_BYTES = 512, QUEUE_MAX = 1024, SLOTS = 32 };
enum { FEATURES = 4, QUEUE_FRAME = 8, QUEUE_SIZE = 12, QUEUE_SELECT = 14, NOTIFY = 16, STATUS = 18, ISR = 19, CAPACITY = 20 };
enum { HOTPLUG_DOWN = 0xae04, HOTPLUG_EJECT = 0xae08, HOTPLUG_BUS = 0xae10 };
enum { CONSOLE = 0x3f8, PIC_MASTER = 0x20, PIC_SLAVE = 0xa0 };

struct descriptor { u64 address; u32 length; u16 flags, next; };
struct request { u32 type, reserved; u64 sector; };

static u8 queue[PAGE_BYTES * 8] __attribute__((aligned(4096)));
static u8 pages[DEPTH_MAX][PAGE_BYTES] __attribute__((aligned(4096)));
static struct request requests[DEPTH_MAX];
static volatile u8 results[DEPTH_MAX];
static struct { u16 low, selector, flags, high; } interrupts[256];
static u32 depth = DEPTH;
volatile u16 disk_port;  /* 0: no disk */

__asm__(
    ".section .multiboot, \"a\"\n"
    ".long 0x1BADB002, 0, -0x1BADB002\n"
    ".text\n"
    ".global start\n"
    "start: cli\n"
    "  mov $stack_end, %esp\n"
    "  lgdt segments_place\n"
    "  ljmp $8, $1f\n"
    "1: mov $16, %ax\n"
    "  mov %ax, %ds\n  mov %ax, %es\n  mov %ax, %ss\n"
    "  push %ebx\n  call run\n"
    /* Whatever interrupts: the disk is told that it was heard, and both interrupt controllers. */
    "interrupt: push %eax\n  push %edx\n"
    "  mov disk_port, %dx\n  test %dx, %dx\n  jz 1f\n"
    "  add $19, %dx\n  in %dx, %al\n"
    "1: mov $0x20, %al\n  out %al, $0xa0\n  out %al, $0x20\n"
    "  pop %edx\n  pop %eax\n  iret\n"
    ".data\n.align 8\n"
    "segments: .quad 0, 0x00cf9a000000ffff, 0x00cf92000000ffff\n"
    "segments_place: .word 23\n .long segments\n"
    ".bss\n.align 16\n.skip 4096\nstack_end:\n");

extern void interrupt(void);

static void out8(u16 port, u8 value) { __asm__ volatile("outb %0, %1" ::"a"(value), "Nd"(port)); }
static void out16(u16 port, u16 value) { __asm__ volatile("outw %0, %1" ::"a"(value), "Nd"(port)); }
static void out32(u16 port, u32 value) { __asm__ volatile("outl %0, %1" ::"a"(value), "Nd"(port)); }
static u8 in8(u16 port) { u8 value; __asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port)); return value; }
static u16 in16(u16 port) { u16 value; __asm__ volatile("inw %1, %0" : "=a"(value) : "Nd"(port)); return value; }
static u32 in32(u16 port) { u32 value; __asm__ volatile("inl %1, %0" : "=a"(value) : "Nd"(port)); return value; }

/* Until an interrupt comes, at the latest the timer's 18 a second. Interrupts are off before and after. */
static void rest(void) { __asm__ volatile("sti; hlt; cli" ::: "memory"); }

static void say(const char *text) {
    for (; *text; text++) {
        while (!(in8(CONSOLE + 5) & 0x20)) {}
        out8(CONSOLE, (u8)*text);
    }
}

static void say_hex(u64 value) {
    char text[] = "0x0000000000000000\n";
    for (int digit = 0; digit < 16; digit++) text[2 + digit] = "0123456789abcdef"[(value >> (60 - 4 * digit)) & 15];
    say(text);
}

/* Multiboot's flag 2: the address of the command line is at offset 16. */
static void read_command_line(const u32 *multiboot) {
    if (!(multiboot[0] & 4)) return;
    const char *text = (const char *)multiboot[4];
    u32 length = 0, value = 0;
    while (text[length]) length++;
    while (length && text[length - 1] != '=') length--;
    if (!length) return;
    for (text += length; *text >= '0' && *text <= '9' && value <= DEPTH_MAX; text++) value = 10 * value + (u32)(*text - '0');
    if (value >= 1 && value <= DEPTH_MAX) depth = value;
}

static void take_interrupts(void) {
    for (int number = 0; number < 256; number++) {
        u32 address = (u32)&interrupt;
        interrupts[number].low = (u16)address;
        interrupts[number].selector = 8;
        interrupts[number].flags = 0x8e00;
        interrupts[number].high = (u16)(address >> 16);
    }
    struct { u16 size; u32 place; } __attribute__((packed)) place = {sizeof interrupts - 1, (u32)interrupts};
    __asm__ volatile("lidt %0" ::"m"(place));
    out8(PIC_MASTER + 1, 0);
    out8(PIC_SLAVE + 1, 0);
}

static u32 configuration(u32 slot, u32 place) {
    out32(0xcf8, 0x80000000 | slot << 11 | place);
    return in32(0xcfc);
}

static void configure(u32 slot, u32 place, u32 value) {
    out32(0xcf8, 0x80000000 | slot << 11 | place);
    out32(0xcfc, value);
}

/* The slot of the first virtio disk, with its registers at `disk_port`; 0: there is none. */
static u32 find_disk(void) {
    for (u32 slot = 1; slot < SLOTS; slot++) {
        if (configuration(slot, 0) != 0x10011af4) continue;
        /* One that was plugged in has no address yet. */
        if ((configuration(slot, 0x10) & ~3u) == 0) configure(slot, 0x10, 0xe000 + slot * 0x100);
        configure(slot, 4, 5); /* answers at its ports, and reads and writes memory */
        disk_port = (u16)(configuration(slot, 0x10) & ~3u);
        return slot;
    }
    return 0;
}

static void write_until_asked_back(u32 slot) {
    u16 port = disk_port;
    out8(port + STATUS, 0);
    out8(port + STATUS, 3);
    out32(port + FEATURES, 0);
    out16(port + QUEUE_SELECT, 0);
    u32 size = in16(port + QUEUE_SIZE);
    u64 sectors = in32(port + CAPACITY) | (u64)in32(port + CAPACITY + 4) << 32;
    if (size < 3 * depth || size > QUEUE_MAX) {
        say("failed: queue\n");
        return;
    }
    for (u32 index = 0; index < sizeof queue; index++) queue[index] = 0;
    struct descriptor *descriptors = (struct descriptor *)queue;
    volatile u16 *available = (volatile u16 *)(queue + 16 * size);
    volatile u16 *used = (volatile u16 *)(queue + ((16 * size + 6 + 2 * size + 4095) & ~4095u));
    out32(port + QUEUE_FRAME, (u32)queue / PAGE_BYTES);
    out8(port + STATUS, 7);
    say("disk ");
    say_hex(sectors * SECTOR_BYTES);
    u32 random = 0x9e3779b9, count = (u32)(sectors / (PAGE_BYTES / SECTOR_BYTES));
    u16 given = 0, taken = 0;
    u64 free = ~0ull >> (64 - depth);
    int leaving = 0;
    for (;;) {
        for (u32 slot_free = 0; !leaving && slot_free < depth; slot_free++) {
            if (!(free & 1ull << slot_free)) continue;
            free &= ~(1ull << slot_free);
            random ^= random << 13, random ^= random >> 17, random ^= random << 5;
            *(u32 *)pages[slot_free] = random;
            requests[slot_free] = (struct request){.type = 1, .sector = (u64)(random % count) * 8};
            u16 first = (u16)(3 * slot_free);
            descriptors[first] = (struct descriptor){(u32)&requests[slot_free], 16, 1, first + 1};
            descriptors[first + 1] = (struct descriptor){(u32)pages[slot_free], PAGE_BYTES, 1, first + 2};
            descriptors[first + 2] = (struct descriptor){(u32)&results[slot_free], 1, 2, 0};
            available[2 + given % size] = first;
            __sync_synchronize();
            available[1] = ++given;
        }
        __sync_synchronize();
        if (!leaving) out16(port + NOTIFY, 0);
        if (used[1] == taken) rest();
        for (; taken != used[1]; taken++) {
            u32 first = *(volatile u32 *)(used + 2 + 4 * (taken % size));
            free |= 1ull << first / 3;
            if (results[first / 3]) say("failed\n");
        }
        out32(HOTPLUG_BUS, 0);
        leaving = leaving || in32(HOTPLUG_DOWN) & 1u << slot;
        if (leaving && given == taken) break;
    }
    out8(port + STATUS, 0);
    disk_port = 0;
    out32(HOTPLUG_EJECT, 1u << slot);
    say("let go\n");
}

void run(const u32 *multiboot) {
    read_command_line(multiboot);
    take_interrupts();
    say("started\n");
    for (;;) {
        u32 slot = find_disk();
        if (slot) write_until_asked_back(slot);
        rest();
    }
}
