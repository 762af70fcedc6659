#include "fabric/emulated/ring_doorbell.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <thread>

namespace ems::fabric::internal {
namespace {

void WriteEvent(int fd) {
  const uint64_t one = 1;
  // A counter that is full has been written often enough.
  [[maybe_unused]] const ssize_t written = ::write(fd, &one, sizeof(one));
}

}  // namespace

// seq_cst on both sides: either the sleeper sees the count, or we see that it sleeps.
void RingDoorbell::Ring(const Wire& wire) {
  wire.count->fetch_add(1, std::memory_order_seq_cst);
  if (wire.asleep->load(std::memory_order_seq_cst) == 0) return;
  wire.asleep->store(0, std::memory_order_seq_cst);
  WriteEvent(wire.event_fd);
}

bool RingDoorbell::Heard(uint64_t count, uint64_t news) const {
  return wire_.count->load(std::memory_order_seq_cst) != count ||
         news_.load(std::memory_order_seq_cst) != news;
}

Status RingDoorbell::Wait(const Deadline& deadline, const std::function<bool()>& poll) {
  while (true) {
    // Taken before poll: what comes later is news.
    const uint64_t count = wire_.count->load(std::memory_order_seq_cst);
    const uint64_t news = news_.load(std::memory_order_seq_cst);
    const bool gone = peer_is_gone();
    const bool late = deadline.Passed();
    if (poll()) return OkStatus();
    if (gone) return Error(StatusCode::kUnavailable, "the other end of the ring is gone");
    if (late) return Error(StatusCode::kDeadlineExceeded, "nothing from the other end of the ring");
    auto state = state_.Lock();
    if (state->has_leader) {
      (void)state.WaitFor(wakeup_, deadline.Remaining(), [&](const State& now) {
        return !now.has_leader || news_.load(std::memory_order_relaxed) != news;
      });
      continue;
    }
    state->has_leader = true;
    state.Unlock();
    Lead(deadline, count, news);
    auto after = state_.Lock();
    after->has_leader = false;
    news_.fetch_add(1, std::memory_order_seq_cst);
    after.Unlock();
    wakeup_.notify_all();
  }
}

void RingDoorbell::Lead(const Deadline& deadline, uint64_t count, uint64_t news) {
  const TimePoint spin_until = Clock::System().Now() + spin_;
  do {
    for (int i = 0; i < 32; ++i) {
      if (Heard(count, news)) return;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    // The peer may be waiting for this very core.
    std::this_thread::yield();
  } while (Clock::System().Now() < spin_until);
  auto state = state_.Lock();
  state->leader_sleeps = true;
  state.Unlock();
  wire_.asleep->store(1, std::memory_order_seq_cst);
  if (!Heard(count, news)) Sleep(deadline);
  wire_.asleep->store(0, std::memory_order_relaxed);
  auto awake = state_.Lock();
  awake->leader_sleeps = false;
}

void RingDoorbell::Sleep(const Deadline& deadline) {
  std::array<pollfd, 2> fds{{{wire_.event_fd, POLLIN, 0}, {socket_, POLLIN | POLLRDHUP, 0}}};
  const int ready = ::poll(fds.data(), fds.size(), deadline.RemainingMs());
  if (ready <= 0) return;
  if (fds[0].revents != 0) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t read = ::read(wire_.event_fd, &count, sizeof(count));
  }
  // Nothing is said after the hello: words are as good as the end.
  if (fds[1].revents != 0) gone_.store(true, std::memory_order_release);
}

void RingDoorbell::Nudge() {
  bool sleeps = false;
  {
    auto state = state_.Lock();
    news_.fetch_add(1, std::memory_order_seq_cst);
    sleeps = state->leader_sleeps;
  }
  wakeup_.notify_all();
  if (sleeps) WriteEvent(wire_.event_fd);
}

}  // namespace ems::fabric::internal
