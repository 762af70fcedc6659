#pragma once
// A value that can be reached only through its lock, so forgetting the lock does not compile.
// All Guarded locks are leaves: while one is held, do no I/O, call no callback, take no other.
#include <condition_variable>
#include <mutex>
#include <utility>

namespace ems {

// Threading: thread-safe.
template <typename T>
class Guarded final {
 public:
  class Locked final {
   public:
    // `&`: a temporary lock cannot be dereferenced by accident.
    T* operator->() & { return value_; }
    T& operator*() & { return *value_; }
    // Waits on `wakeup` until `ready(value)`, or forever; the lock is free meanwhile.
    template <typename Ready>
    void Wait(std::condition_variable& wakeup, Ready ready) {
      wakeup.wait(lock_, [&] { return ready(*value_); });
    }
    // The same with a bound; false when it passed first.
    template <typename Duration, typename Ready>
    bool WaitFor(std::condition_variable& wakeup, Duration timeout, Ready ready) {
      return wakeup.wait_for(lock_, timeout, [&] { return ready(*value_); });
    }
    void Unlock() { lock_.unlock(); }

   private:
    friend class Guarded;
    Locked(std::mutex& mutex, T* value) : lock_(mutex), value_(value) {}
    std::unique_lock<std::mutex> lock_;
    T* value_;
  };

  Guarded() = default;
  template <typename... Args>
  explicit Guarded(std::in_place_t, Args&&... args) : value_(std::forward<Args>(args)...) {}
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  [[nodiscard]] Locked Lock() { return Locked(mutex_, &value_); }

 private:
  std::mutex mutex_;
  T value_{};
};

}  // namespace ems
