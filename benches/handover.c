/* Says how long a cache line takes from one processor to another and back, in nanoseconds: between two of one
 * die about 100, and three to four times as long if they share no cache.
 *
 *     handover FIRST SECOND
 *
 * Two threads, bound to the processors FIRST and SECOND, take turns at one number.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Turns of each thread: a few milliseconds. The first ones are not timed, as the threads are still moving. */
enum { TURNS = 20000, UNTIMED = 2000 };

static _Atomic int turn;

static void bind_to(const char *processor) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(atoi(processor), &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) {
        perror(processor);
        exit(1);
    }
}

static void *answer(void *processor) {
    bind_to(processor);
    for (int n = 0; n < TURNS; n++) {
        while (atomic_load(&turn) != 2 * n + 1) {}
        atomic_store(&turn, 2 * n + 2);
    }
    return NULL;
}

int main(int count, char **arguments) {
    if (count != 3) {
        fprintf(stderr, "usage: handover FIRST SECOND\n");
        return 1;
    }
    pthread_t other;
    if (pthread_create(&other, NULL, answer, arguments[2]) != 0) {
        perror("thread");
        return 1;
    }
    bind_to(arguments[1]);
    struct timespec begin, end;
    for (int n = 0; n < TURNS; n++) {
        if (n == UNTIMED) clock_gettime(CLOCK_MONOTONIC, &begin);
        atomic_store(&turn, 2 * n + 1);
        while (atomic_load(&turn) != 2 * n + 2) {}
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    pthread_join(other, NULL);
    double taken = (double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec);
    printf("%.0f\n", taken / (TURNS - UNTIMED));
    return 0;
}
