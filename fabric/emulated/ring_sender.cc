#include "fabric/emulated/ring_sender.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/copy.h"
#include "common/guarded.h"
#include "common/hash.h"
#include "common/sleep.h"
#include "fabric/emulated/ring_doorbell.h"
#include "fabric/net/fd_message.h"
#include "fabric/shm/shm_transport.h"

namespace ems::fabric {
namespace {

using internal::RingDoorbell;

// Of a message of which nothing has been taken yet.
constexpr uint32_t kUnmatchedChunksMax = 2;

// One message that is being sent, and what became of its chunks. Under the sender's lock.
struct Outgoing {
  uint64_t event_id = 0;
  uint32_t number = 0;
  uint32_t chunks_out = 0;    // without an ack yet
  uint32_t chunks_taken = 0;  // with one
  uint32_t published = 0;
  bool begun = false;     // the receiver may have to be told of its cancel
  bool complete = false;  // its last chunk, too
  RingAck verdict = RingAck::kTaken;
  RingSendOptions options;
  bool stopped() const {
    return options.stop != nullptr && options.stop->load(std::memory_order_acquire);
  }
  // Of its thread alone: what was counted when something moved last, and when.
  uint64_t moves_seen = 0;
  TimePoint moved = Clock::System().Now();
};

Status VerdictStatus(RingAck verdict, uint64_t event_id) {
  switch (verdict) {
    case RingAck::kTaken:
      return OkStatus();
    case RingAck::kGivenUp:
      return Error(StatusCode::kDeadlineExceeded, "the receiver gave event {} up", event_id);
    case RingAck::kTooLarge:
      return Error(StatusCode::kOutOfRange, "the receiver's buffer for event {} is smaller",
                   event_id);
    case RingAck::kCorrupt:
      return Error(StatusCode::kDataLoss, "the receiver found event {} corrupt", event_id);
  }
  return Error(StatusCode::kDataLoss, "event {}: no such ack", event_id);
}

bool IsEventFd(int fd) {
  std::array<char, 64> target{};
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = ::readlink(path.c_str(), target.data(), target.size());
  return length > 0 &&
         std::string_view(target.data(), static_cast<size_t>(length)) == "anon_inode:[eventfd]";
}

Status CheckHello(const RingHello& hello, const std::vector<Fd>& fds) {
  const auto wrong = [](std::string_view what) {
    return Error(StatusCode::kDataLoss, "the offer of a ring makes no sense: {}", what);
  };
  if (hello.magic != RingHello::kMagic) return wrong("another protocol");
  if (!RingLayout::IsValid(hello.entries, hello.entry_bytes) || hello.checksums > 1)
    return wrong("its sizes");
  if (RingLayout(hello.entries, hello.entry_bytes).memory_bytes() != hello.memory_bytes)
    return wrong("the size of its memory");
  if (fds.size() != 4) return wrong("its descriptors");
  for (size_t i = 1; i < fds.size(); ++i)
    if (!IsEventFd(fds[i].get())) return wrong("a descriptor that is no eventfd");
  return OkStatus();
}

Status ReceiveHello(int socket, const Deadline& deadline, RingHello* hello, std::vector<Fd>* fds) {
  MessageReceiver receiver;
  while (true) {
    const auto outcome = receiver.Receive(socket, std::as_writable_bytes(std::span(hello, 1)), fds);
    if (outcome == MessageReceiver::Outcome::kMessage) return CheckHello(*hello, *fds);
    if (outcome == MessageReceiver::Outcome::kEnded)
      return Error(StatusCode::kUnavailable, "the receiver went before it offered a ring");
    if (deadline.Passed()) return Error(StatusCode::kDeadlineExceeded, "no ring was offered");
    pollfd fd{socket, POLLIN, 0};
    (void)::poll(&fd, 1, deadline.RemainingMs());
  }
}

}  // namespace

struct RingSender::Impl {
  // Of each entry, and of the field of cancels behind them.
  struct Entry {
    uint64_t tail = 0;      // of the chunk in it, or the last one
    uint64_t ack_seen = 0;  // the ack before it
    bool taken = false;
    bool published = false;  // its field is stored, or about to be: an ack may come
    std::shared_ptr<Outgoing> message;
  };
  struct State {
    std::vector<Entry> entries;
    uint32_t entries_taken = 0;
    uint32_t messages = 0;
    uint64_t tails = 0;
    std::set<uint64_t> events;
    size_t begun = 0;                                   // messages that are
    std::deque<std::pair<uint64_t, uint32_t>> cancels;  // event, message; still to be told
    uint64_t moves = 0;                                 // chunks stored, and acks
    uint64_t stalls = 0;
    bool stalled = false;  // a message's limit was over, and no ack has come since
    uint64_t probes = 0;
    bool probing = false;
    bool broken = false;
  };

  Impl(const RingHello& hello, std::unique_ptr<SharedPage> mapped, std::vector<Fd> event_fds,
       Fd connection, Duration spin)
      : layout(hello.entries, hello.entry_bytes),
        checksums(hello.checksums == 1),
        memory(std::move(mapped)),
        base(memory->writable_address()),
        fds(std::move(event_fds)),
        socket(std::move(connection)),
        bell({&page()->ack_bell, &page()->sender_asleep, fds[2].get()}, socket.get(), spin) {
    EMS_CHECK(memory->size_bytes() >= layout.memory_bytes() && fds.size() == 4);
    auto now = state.Lock();
    now->entries.resize(layout.entries() + size_t{1});
  }

  RingPage* page() const { return RingLayout::Page(base); }
  void RingReceiversBell() const {
    RingDoorbell::Ring({&page()->data_bell, &page()->receiver_asleep, fds[1].get()});
  }
  void CollectAcks(State* now);
  void TellCancels(State* now);
  std::optional<uint32_t> Claim(const std::shared_ptr<Outgoing>& message);
  void Release(uint32_t entry);
  void Publish(uint32_t entry, const Outgoing& message, uint32_t chunk_id, ConstBytes chunk);
  // Waits for `poll`, the limit of a message that does not move at most; `poll` calls Look.
  Status Wait(Outgoing* message, const Deadline& deadline, const std::function<bool()>& poll);
  void Look(Outgoing* message, State* now);
  Status SendChunks(const std::shared_ptr<Outgoing>& message, ConstBytes bytes,
                    const Deadline& deadline);
  Status WaitForAcks(const std::shared_ptr<Outgoing>& message, const Deadline& deadline);
  void End(const std::shared_ptr<Outgoing>& message, bool given_up);

  const RingLayout layout;
  const bool checksums;
  const std::unique_ptr<SharedPage> memory;
  std::byte* const base;
  const std::vector<Fd> fds;  // memory, data, acks, probes
  const Fd socket;
  RingDoorbell bell;
  Guarded<State> state;
};

// Under the lock: frees entries whose ack has come.
void RingSender::Impl::CollectAcks(State* now) {
  for (uint32_t i = 0; i <= layout.entries(); ++i) {
    Entry& entry = now->entries[i];
    if (!entry.taken) continue;
    const uint64_t word = layout.Ack(base, i)->load(std::memory_order_acquire);
    if (word == entry.ack_seen) continue;
    const uint64_t verdict = word & 0xff;
    if (!entry.published || word >> 8 != entry.tail ||
        verdict > static_cast<uint64_t>(RingAck::kCorrupt)) {
      now->broken = true;
      return;
    }
    entry.ack_seen = word;
    entry.taken = false;
    ++now->moves;
    now->stalled = false;
    if (i == layout.entries()) continue;
    EMS_CHECK(entry.message != nullptr && now->entries_taken > 0, "entry {} is nobody's", i);
    --now->entries_taken;
    Outgoing& message = *entry.message;
    EMS_CHECK(message.chunks_out > 0, "an ack more than chunks of event {}", message.event_id);
    --message.chunks_out;
    ++message.chunks_taken;
    if (message.verdict == RingAck::kTaken) message.verdict = static_cast<RingAck>(verdict);
    entry.message.reset();
  }
}

// Under the lock: cancels of abandoned messages are sent in a field of their own, one at a time.
void RingSender::Impl::TellCancels(State* now) {
  Entry& entry = now->entries[layout.entries()];
  if (now->cancels.empty() || entry.taken || now->broken) return;
  const auto [event_id, number] = now->cancels.front();
  now->cancels.pop_front();
  entry.taken = entry.published = true;
  entry.tail = ++now->tails;
  RingField* field = layout.Field(base, layout.entries());
  field->event_id.store(event_id, std::memory_order_relaxed);
  field->message.store(number, std::memory_order_relaxed);
  field->chunk_id.store(kRingCancel, std::memory_order_relaxed);
  field->chunk_bytes.store(0, std::memory_order_relaxed);
  field->tail.store(entry.tail, std::memory_order_release);
  RingReceiversBell();
}

// An entry for the next chunk of `message`, or nothing for now.
std::optional<uint32_t> RingSender::Impl::Claim(const std::shared_ptr<Outgoing>& message) {
  auto now = state.Lock();
  CollectAcks(&*now);
  TellCancels(&*now);
  if (now->broken || now->entries_taken == layout.entries()) return std::nullopt;
  if (message->chunks_taken == 0 && message->chunks_out >= kUnmatchedChunksMax) return std::nullopt;
  // Each that begins may be abandoned, and the receiver has to hear of all of these: none is
  // begun beyond the cancels that can be kept.
  if (!message->begun && now->begun + now->cancels.size() >= kEndsMax) return std::nullopt;
  for (uint32_t i = 0; i < layout.entries(); ++i) {
    Entry& entry = now->entries[i];
    if (entry.taken) continue;
    entry.taken = true;
    entry.published = false;
    entry.tail = ++now->tails;
    entry.message = message;
    ++now->entries_taken;
    ++message->chunks_out;
    if (!std::exchange(message->begun, true)) ++now->begun;
    return i;
  }
  return std::nullopt;
}

// What was claimed is not used after all.
void RingSender::Impl::Release(uint32_t entry) {
  auto now = state.Lock();
  EMS_CHECK(now->entries[entry].taken && !now->entries[entry].published);
  now->entries[entry].taken = false;
  --now->entries_taken;
  --now->entries[entry].message->chunks_out;
  now->entries[entry].message.reset();
}

// The chunk's bytes are in its entry: now its field, the tail last.
void RingSender::Impl::Publish(uint32_t entry, const Outgoing& message, uint32_t chunk_id,
                               ConstBytes chunk) {
  auto now = state.Lock();
  EMS_CHECK(now->entries[entry].taken && !now->entries[entry].published);
  EMS_CHECK(chunk.size() <= layout.entry_bytes(), "a chunk of {} bytes", chunk.size());
  const uint64_t tail = now->entries[entry].tail;
  now->entries[entry].published = true;
  ++now->moves;
  now.Unlock();
  RingField* field = layout.Field(base, entry);
  field->event_id.store(message.event_id, std::memory_order_relaxed);
  field->chunk_id.store(chunk_id, std::memory_order_relaxed);
  field->chunk_bytes.store(static_cast<uint32_t>(chunk.size()), std::memory_order_relaxed);
  field->message.store(message.number, std::memory_order_relaxed);
  field->checksum.store(checksums ? static_cast<uint32_t>(Hash64(chunk)) : 0,
                        std::memory_order_relaxed);
  field->tail.store(tail, std::memory_order_release);
  RingReceiversBell();
}

// Under the lock: whether the message has moved. One that has chunks on their way waits for acks of
// these; one that has none waits for an entry, and others that move may leave theirs.
void RingSender::Impl::Look(Outgoing* message, State* now) {
  const uint64_t moves = message->chunks_out > 0 ? message->chunks_taken : now->moves;
  if (moves == std::exchange(message->moves_seen, moves)) return;
  message->moved = Clock::System().Now();
}

Status RingSender::Impl::Wait(Outgoing* message, const Deadline& deadline,
                              const std::function<bool()>& poll) {
  const Duration limit = message->options.stall_limit;
  if (limit == Duration::max()) return bell.Wait(deadline, poll);
  while (true) {
    const TimePoint patience = message->moved + limit;
    Status waited = bell.Wait(Deadline(std::min(deadline.at(), patience)), poll);
    if (waited.code() != StatusCode::kDeadlineExceeded || deadline.Passed()) return waited;
    if (message->moved + limit > patience) continue;
    auto now = state.Lock();
    ++now->stalls;
    now->stalled = true;
    return Error(StatusCode::kUnavailable, "the receiver has taken nothing of event {} for {} ms",
                 message->event_id,
                 std::chrono::duration_cast<std::chrono::milliseconds>(limit).count());
  }
}

Status RingSender::Impl::SendChunks(const std::shared_ptr<Outgoing>& message, ConstBytes bytes,
                                    const Deadline& deadline) {
  const EmulatedPath* const path = message->options.path;
  const uint64_t chunks =
      std::max<uint64_t>(1, (bytes.size() + layout.entry_bytes() - 1) / layout.entry_bytes());
  if (chunks > kRingChunkMask)
    return Error(StatusCode::kOutOfRange, "{} bytes in chunks of {}", bytes.size(),
                 layout.entry_bytes());
  static const EmulatedPath kNoPath;
  EmulatedTransfer transfer(path == nullptr ? &kNoPath : path, Clock::System().Now());
  for (uint64_t i = 0; i < chunks; ++i) {
    std::optional<uint32_t> entry;
    const Status waited = Wait(message.get(), deadline, [&] {
      entry = Claim(message);
      if (entry) return true;
      auto now = state.Lock();
      Look(message.get(), &*now);
      return now->broken || message->stopped() || message->verdict != RingAck::kTaken;
    });
    EMS_RETURN_IF_ERROR(waited);
    if (!entry) return OkStatus();  // what is wrong shows in the acks
    const ConstBytes chunk =
        bytes.subspan(i * layout.entry_bytes(),
                      std::min(layout.entry_bytes(), bytes.size() - i * layout.entry_bytes()));
    if (path != nullptr) transfer.Add(chunk.size());
    CopyValue({layout.Entry(base, *entry), chunk.size()}, chunk.data(), nullptr);
    if (path != nullptr) SleepUntil(std::min(transfer.arrival(), deadline.at()));
    if (path != nullptr && transfer.arrival() > deadline.at()) {
      Release(*entry);
      return Error(StatusCode::kDeadlineExceeded, "event {} is on a slow path", message->event_id);
    }
    Publish(*entry, *message,
            static_cast<uint32_t>(i) | (i + 1 == chunks ? kRingLastChunk : uint32_t{0}), chunk);
    ++message->published;  // this thread's alone
    message->moved = Clock::System().Now();
  }
  message->complete = true;
  return OkStatus();
}

Status RingSender::Impl::WaitForAcks(const std::shared_ptr<Outgoing>& message,
                                     const Deadline& deadline) {
  RingAck verdict = RingAck::kTaken;
  bool broken = false, whole = false;
  const Status waited = Wait(message.get(), deadline, [&] {
    auto now = state.Lock();
    CollectAcks(&*now);
    TellCancels(&*now);
    Look(message.get(), &*now);
    verdict = message->verdict;
    broken = now->broken;
    whole = message->complete && message->chunks_out == 0;
    return broken || verdict != RingAck::kTaken || message->chunks_out == 0 || message->stopped();
  });
  if (broken) return Error(StatusCode::kDataLoss, "the receiver's acks make no sense");
  EMS_RETURN_IF_ERROR(waited);
  EMS_RETURN_IF_ERROR(VerdictStatus(verdict, message->event_id));
  if (!whole) return Error(StatusCode::kCancelled, "event {} was stopped", message->event_id);
  return OkStatus();
}

void RingSender::Impl::End(const std::shared_ptr<Outgoing>& message, bool given_up) {
  {
    auto now = state.Lock();
    now->events.erase(message->event_id);
    const bool full = now->begun + now->cancels.size() >= kEndsMax;
    if (message->begun) --now->begun;
    // A receiver that was told of part of it must not wait for the rest.
    if (given_up && message->published > 0) {
      now->cancels.emplace_back(message->event_id, message->number);
      CollectAcks(&*now);
      TellCancels(&*now);
    }
    if (!full) return;
  }
  bell.Nudge();  // others wait to begin
}

RingSender::RingSender(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RingSender::~RingSender() = default;

void RingSender::HangUp() { (void)::shutdown(impl_->socket.get(), SHUT_RDWR); }

Result<std::unique_ptr<RingSender>> RingSender::Accept(Fd socket, Duration timeout, Duration spin) {
  RingHello hello;
  std::vector<Fd> fds;
  EMS_RETURN_IF_ERROR(ReceiveHello(socket.get(), Deadline::After(timeout), &hello, &fds));
  for (size_t i = 1; i < fds.size(); ++i) (void)::fcntl(fds[i].get(), F_SETFL, O_NONBLOCK);
  auto memory = SharedPage::Map(fds[0], hello.memory_bytes);
  if (!memory.ok() && memory.status().code() == StatusCode::kInvalidArgument)
    return Error(StatusCode::kDataLoss, "the offer of a ring: {}", Message(memory.status()));
  if (!memory.ok()) return memory.status();
  return std::unique_ptr<RingSender>(new RingSender(  // NOLINT: the constructor is private
      std::make_unique<Impl>(hello, *std::move(memory), std::move(fds), std::move(socket), spin)));
}

void RingSender::Wake() { impl_->bell.Nudge(); }

uint64_t RingSender::stalled() {
  auto now = impl_->state.Lock();
  return now->stalls;
}

Status RingSender::Send(uint64_t event_id, ConstBytes message, Duration timeout,
                        const RingSendOptions& options) {
  const Deadline deadline = Deadline::After(timeout);
  auto outgoing = std::make_shared<Outgoing>();
  outgoing->event_id = event_id;
  outgoing->options = options;
  {
    auto now = impl_->state.Lock();
    if (now->broken) return Error(StatusCode::kDataLoss, "the receiver's acks made no sense");
    impl_->CollectAcks(&*now);
    if (now->stalled && options.stall_limit != Duration::max()) {
      ++now->stalls;
      return Error(StatusCode::kUnavailable, "the receiver still takes nothing");
    }
    if (!now->events.insert(event_id).second)
      return Error(StatusCode::kAlreadyExists, "event {} is being sent", event_id);
    outgoing->number = ++now->messages;
  }
  Status status = impl_->SendChunks(outgoing, message, deadline);
  if (status.ok()) status = impl_->WaitForAcks(outgoing, deadline);
  impl_->End(outgoing, !status.ok());
  return status;
}

Result<RingProbeAnswer> RingSender::Probe(Duration timeout) {
  const TimePoint begin = Clock::System().Now();
  Impl& impl = *impl_;
  uint64_t number = 0;
  {
    auto now = impl.state.Lock();
    if (now->probing) return Error(StatusCode::kAlreadyExists, "a probe is under way");
    now->probing = true;
    number = ++now->probes;
  }
  const MutableBytes payload = impl.layout.Probe(impl.base);
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(number * 31 + i);
  impl.page()->probe_checksum.store(Hash64(payload, number), std::memory_order_relaxed);
  impl.page()->probe.store(number, std::memory_order_release);
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(impl.fds[3].get(), &one, sizeof(one));
  const Status waited = impl.bell.Wait(Deadline::After(timeout), [&] {
    {
      // Cancels are sent also while no message is.
      auto now = impl.state.Lock();
      impl.CollectAcks(&*now);
      impl.TellCancels(&*now);
    }
    return impl.page()->probe_ack.load(std::memory_order_acquire) == number;
  });
  auto now = impl.state.Lock();
  now->probing = false;
  impl.CollectAcks(&*now);
  EMS_RETURN_IF_ERROR(waited);
  return RingProbeAnswer{Clock::System().Now() - begin, now->entries_taken, impl.layout.entries()};
}

}  // namespace ems::fabric
