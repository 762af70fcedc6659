// What glibc got after 2.28 and code compiled against a newer one uses: EMS, libstdc++, gRPC,
// OpenSSL. Linked into the portable files, where it stays hidden; each does what the documented one
// does, in terms of what 2.28 has. x86-64.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/single_threaded.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

// 2.32: true only while a process has one thread. Not to know is to use atomics, which is right
// always.
char __libc_single_threaded = 0;

// 2.33: functions of their own. Before, inline wrappers of these, whose first argument is the
// layout of the struct.
enum { kStatLayout = 1 };
int __xstat(int layout, const char* path, struct stat* into);
int __lxstat(int layout, const char* path, struct stat* into);
int __fxstat(int layout, int fd, struct stat* into);
int __xstat64(int layout, const char* path, struct stat64* into);
int __fxstat64(int layout, int fd, struct stat64* into);
int __fxstatat(int layout, int folder, const char* path, struct stat* into, int flags);

int stat(const char* path, struct stat* into) { return __xstat(kStatLayout, path, into); }
int lstat(const char* path, struct stat* into) { return __lxstat(kStatLayout, path, into); }
int fstat(int fd, struct stat* into) { return __fxstat(kStatLayout, fd, into); }
int stat64(const char* path, struct stat64* into) { return __xstat64(kStatLayout, path, into); }
int fstat64(int fd, struct stat64* into) { return __fxstat64(kStatLayout, fd, into); }
int fstatat(int folder, const char* path, struct stat* into, int flags) {
  return __fxstatat(kStatLayout, folder, path, into, flags);
}

// 2.36. getentropy fails only in kernels without getrandom, which are older than any that
// glibc 2.28 is shipped with.
uint32_t arc4random(void) {
  uint32_t value;
  if (getentropy(&value, sizeof(value)) != 0) abort();
  return value;
}

// 2.30. Taken from the glibc of the process where it has it. An older one waits by the wall clock
// alone: the deadline moves with that clock when it is set during the wait; callers that look at
// their own clock afterwards, as libstdc++ does, only wake early.
typedef int ClockWait(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);
static ClockWait* glibc_clockwait;  // written before the library's other code runs

__attribute__((constructor(101))) static void FindClockWait(void) {
  *(void**)&glibc_clockwait = dlsym(RTLD_DEFAULT, "pthread_cond_clockwait");
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* until) {
  enum { kNanoseconds = 1000000000 };
  struct timespec now, wall;
  if (glibc_clockwait != NULL) return glibc_clockwait(condition, mutex, clock, until);
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &wall);
  wall.tv_sec += until->tv_sec - now.tv_sec;
  wall.tv_nsec += until->tv_nsec - now.tv_nsec;
  if (wall.tv_nsec < 0) {
    wall.tv_sec -= 1;
    wall.tv_nsec += kNanoseconds;
  } else if (wall.tv_nsec >= kNanoseconds) {
    wall.tv_sec += 1;
    wall.tv_nsec -= kNanoseconds;
  }
  return pthread_cond_timedwait(condition, mutex, &wall);
}
