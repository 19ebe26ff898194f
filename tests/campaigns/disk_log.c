/* Preloaded into a program: keeps a log of all that it changes below the folder $DISK_LOG_UNDER in the file $DISK_LOG,
 * in the order in which it happened. Files are not synced for real: what a sync would have kept is for who reads the log.
 *
 * A record is struct record, then `name` bytes of a path (rename: two, each ended by NUL), then `data` bytes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN = 1, WRITE, TRUNCATE, PUNCH, SYNC, RENAME, UNLINK };
struct record {
    uint32_t op, handle;
    uint64_t offset, length;
    uint32_t name, data;
};

#define DESCRIPTORS 65536
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t handle_of[DESCRIPTORS]; /* 0: not below the folder */
static uint32_t handles;
static int log_fd = -1;
static const char *under;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("DISK_LOG");
    under = getenv("DISK_LOG_UNDER");
    if (path && under)
        log_fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static int tracked(int fd) { return log_fd >= 0 && fd >= 0 && fd < DESCRIPTORS && handle_of[fd]; }

static int below(const char *path) { return log_fd >= 0 && path && !strncmp(path, under, strlen(under)); }

/* One write, so that the length of the log is always that of whole records. */
static void note(struct record head, const void *name, const void *data) {
    struct iovec parts[3] = {{&head, sizeof head}, {(void *)name, head.name}, {(void *)data, head.data}};
    ssize_t all = (ssize_t)(sizeof head + head.name + head.data);
    if (syscall(SYS_writev, log_fd, parts, 3) != all)
        abort();
}

static int open_noted(const char *path, int flags, mode_t mode) {
    if (!below(path))
        return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    pthread_mutex_lock(&lock);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    if (fd >= 0 && fd < DESCRIPTORS) {
        handle_of[fd] = ++handles;
        struct record head = {OPEN, handles, 0, (flags & O_TRUNC) != 0, (uint32_t)strlen(path), 0};
        note(head, path, NULL);
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

#define OPENING(name)                                                                                                  \
    int name(const char *path, int flags, ...) {                                                                       \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;                                        \
        va_end(rest);                                                                                                  \
        return open_noted(path, flags, mode);                                                                          \
    }
OPENING(open)
OPENING(open64)

int close(int fd) {
    if (fd >= 0 && fd < DESCRIPTORS)
        handle_of[fd] = 0;
    return (int)syscall(SYS_close, fd);
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    if (!tracked(fd))
        return syscall(SYS_pwrite64, fd, data, length, offset);
    pthread_mutex_lock(&lock);
    ssize_t done = syscall(SYS_pwrite64, fd, data, length, offset);
    if (done > 0) {
        struct record head = {WRITE, handle_of[fd], (uint64_t)offset, (uint64_t)done, 0, (uint32_t)done};
        note(head, NULL, data);
    }
    pthread_mutex_unlock(&lock);
    return done;
}

ssize_t write(int fd, const void *data, size_t length) {
    if (!tracked(fd))
        return syscall(SYS_write, fd, data, length);
    pthread_mutex_lock(&lock);
    off_t offset = syscall(SYS_lseek, fd, 0, SEEK_CUR);
    ssize_t done = syscall(SYS_write, fd, data, length);
    if (done > 0) {
        struct record head = {WRITE, handle_of[fd], (uint64_t)offset, (uint64_t)done, 0, (uint32_t)done};
        note(head, NULL, data);
    }
    pthread_mutex_unlock(&lock);
    return done;
}

int ftruncate64(int fd, off64_t length) {
    if (!tracked(fd))
        return (int)syscall(SYS_ftruncate, fd, length);
    pthread_mutex_lock(&lock);
    int done = (int)syscall(SYS_ftruncate, fd, length);
    if (done == 0)
        note((struct record){TRUNCATE, handle_of[fd], 0, (uint64_t)length, 0, 0}, NULL, NULL);
    pthread_mutex_unlock(&lock);
    return done;
}

int fallocate(int fd, int mode, off_t offset, off_t length) {
    if (!tracked(fd))
        return (int)syscall(SYS_fallocate, fd, mode, offset, length);
    pthread_mutex_lock(&lock);
    int done = (int)syscall(SYS_fallocate, fd, mode, offset, length);
    if (done == 0 && mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE))
        note((struct record){PUNCH, handle_of[fd], (uint64_t)offset, (uint64_t)length, 0, 0}, NULL, NULL);
    pthread_mutex_unlock(&lock);
    return done;
}

static int synced(int fd, long call) {
    if (!tracked(fd))
        return (int)syscall(call, fd);
    pthread_mutex_lock(&lock);
    if (!getenv("DISK_LOG_FORGETS_SYNCS"))
        note((struct record){SYNC, handle_of[fd], 0, 0, 0, 0}, NULL, NULL);
    pthread_mutex_unlock(&lock);
    return 0;
}

int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

int rename(const char *from, const char *to) {
    if (!below(from))
        return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    pthread_mutex_lock(&lock);
    int done = (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    if (done == 0) {
        size_t first = strlen(from) + 1, second = strlen(to) + 1;
        char both[first + second];
        memcpy(both, from, first);
        memcpy(both + first, to, second);
        note((struct record){RENAME, 0, 0, 0, (uint32_t)(first + second), 0}, both, NULL);
    }
    pthread_mutex_unlock(&lock);
    return done;
}

int unlink(const char *path) {
    if (!below(path))
        return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    pthread_mutex_lock(&lock);
    int done = (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    if (done == 0)
        note((struct record){UNLINK, 0, 0, 0, (uint32_t)strlen(path), 0}, path, NULL);
    pthread_mutex_unlock(&lock);
    return done;
}
