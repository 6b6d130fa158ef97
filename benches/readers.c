/* Reads or stats the files of a list, and says how long that took: in C, because Python takes longer to call
 * read() than the kernel takes to answer it.
 *
 *     readers read|stat LIST BYTES WARM MIN_SECONDS
 *
 * LIST has one path per line. BYTES is the size that every file must have; it is read with one buffer of this
 * size. WARM is the number of passes over the list before those that count. After them it makes passes until
 * MIN_SECONDS are over, and at least one. For each it prints the nanoseconds of its first file (after a fresh
 * mount that one pays for what is loaded on demand) and of the whole pass.
 *
 * Any error, and any file of another size, ends it with status 1: a wrong read must not count as a fast one.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct list {
    char **paths;
    size_t count;
};

typedef void visit(const char *path, char *buffer, size_t bytes);

static void fail(const char *path, const char *words) {
    fprintf(stderr, "readers: %s: %s\n", path, words);
    exit(1);
}

static void wrong_size(const char *path, size_t found, size_t wanted) {
    char words[96];
    snprintf(words, sizeof words, "%zu bytes instead of %zu", found, wanted);
    fail(path, words);
}

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void visit_read(const char *path, char *buffer, size_t bytes) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) fail(path, strerror(errno));
    size_t have = 0;
    /* One call in practice: all of it is asked for at once. */
    while (have < bytes) {
        ssize_t got = read(file, buffer + have, bytes - have);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) fail(path, strerror(errno));
        if (got == 0) wrong_size(path, have, bytes);
        have += (size_t)got;
    }
    if (close(file) != 0) fail(path, strerror(errno));
}

static void visit_stat(const char *path, char *buffer, size_t bytes) {
    (void)buffer;
    struct stat status;
    if (stat(path, &status) != 0) fail(path, strerror(errno));
    if ((size_t)status.st_size != bytes) wrong_size(path, (size_t)status.st_size, bytes);
}

static struct list read_list(const char *name) {
    FILE *file = fopen(name, "r");
    if (file == NULL) fail(name, strerror(errno));
    struct list list = {NULL, 0};
    size_t room = 0, size = 0;
    char *line = NULL;
    for (ssize_t length; (length = getline(&line, &size, file)) > 0;) {
        if (line[length - 1] == '\n') line[length - 1] = '\0';
        if (list.count == room) {
            room = room ? 2 * room : 1024;
            list.paths = realloc(list.paths, room * sizeof *list.paths);
            if (list.paths == NULL) fail(name, "no memory");
        }
        list.paths[list.count++] = strdup(line);
    }
    free(line);
    fclose(file);
    if (list.count == 0) fail(name, "the list is empty");
    return list;
}

static void pass(struct list list, visit *visit, char *buffer, size_t bytes, uint64_t *first, uint64_t *whole) {
    uint64_t begin = now();
    visit(list.paths[0], buffer, bytes);
    *first = now() - begin;
    for (size_t i = 1; i < list.count; i++) visit(list.paths[i], buffer, bytes);
    *whole = now() - begin;
}

int main(int count, char **arguments) {
    if (count != 6) fail("usage", "readers read|stat LIST BYTES WARM MIN_SECONDS");
    visit *visit = strcmp(arguments[1], "stat") == 0 ? visit_stat : visit_read;
    struct list list = read_list(arguments[2]);
    size_t bytes = strtoull(arguments[3], NULL, 10);
    unsigned long warm = strtoul(arguments[4], NULL, 10);
    uint64_t enough = (uint64_t)(strtod(arguments[5], NULL) * 1e9);
    uint64_t first, whole, total = 0;

    char *buffer = malloc(bytes ? bytes : 1);
    if (buffer == NULL) fail("buffer", "no memory");
    /* Its pages must not be made while the first file is timed. */
    memset(buffer, 1, bytes);
    while (warm-- > 0) pass(list, visit, buffer, bytes, &first, &whole);
    do {
        pass(list, visit, buffer, bytes, &first, &whole);
        printf("%llu %llu\n", (unsigned long long)first, (unsigned long long)whole);
        total += whole;
    } while (total < enough);
    return 0;
}
