#include "fabric/emulated/ring_receiver.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/copy.h"
#include "common/guarded.h"
#include "common/hash.h"
#include "common/thread_pool.h"
#include "fabric/emulated/ring_doorbell.h"
#include "fabric/net/fd_message.h"
#include "fabric/shm/shm_segment.h"

namespace ems::fabric {
namespace {

using internal::RingDoorbell;

// Messages whose receive was abandoned and whose rest has not come; older ones are forgotten.
constexpr size_t kDroppedMax = 4096;

// A chunk as its field says, read once.
struct Chunk {
  uint32_t entry = 0;
  uint64_t event_id = 0;
  uint32_t message = 0;
  uint32_t index = 0;
  uint32_t bytes = 0;
  uint32_t checksum = 0;
  uint64_t tail = 0;
  bool last = false;
};

Result<std::vector<Fd>> MakeEventFds() {
  std::vector<Fd> fds;
  for (int i = 0; i < 4; ++i) {
    fds.emplace_back(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!fds.back().valid()) return Error(StatusCode::kInternal, "eventfd: {}", ErrnoText(errno));
  }
  return fds;
}

}  // namespace

// Under the receiver's lock, but for `into`: each thread that copies a chunk writes a part of it.
struct RingReceiver::Posted::Ticket {
  uint64_t event_id = 0;
  MutableBytes into;
  bool matched = false;
  uint32_t message = 0;         // once matched
  std::vector<bool> arrived{};  // by chunk
  uint64_t chunks_arrived = 0;
  uint64_t chunks = 0;   // 0: the last one has not come
  uint64_t bytes = 0;    // of all, once the last one has come
  uint32_t copying = 0;  // threads that write to `into`
  bool over = false;
  Status status;
};

struct RingReceiver::Impl {
  using Ticket = RingReceiver::Posted::Ticket;
  using TicketPtr = std::shared_ptr<Ticket>;
  // The work on a chunk: copy it to a ticket, or nothing; then ack it.
  struct Job {
    Chunk chunk;
    TicketPtr ticket;
    RingAck ack = RingAck::kTaken;
  };
  struct State {
    struct Entry {
      uint64_t tail_seen = 0;
      bool held = false;  // its chunk has no ack yet
    };
    std::vector<Entry> entries;
    uint64_t bell_seen = 0;                           // when it was scanned last
    std::map<uint64_t, TicketPtr> posted;             // by event id, until they are over
    std::map<uint32_t, TicketPtr> matched;            // by message
    std::map<uint64_t, std::deque<Chunk>> unclaimed;  // by event id: nobody waits for them
    std::map<uint32_t, RingAck> dropped;  // by message: what to tell the sender of the rest
    bool broken = false;
  };

  Impl(const RingOptions& options, ShmSegment memory_of_ring, std::vector<Fd> fds, Fd connection)
      : layout(options.entries, options.entry_bytes),
        checksums(options.checksums),
        memory(std::move(memory_of_ring)),
        base(memory.bytes().data()),
        event_fds(std::move(fds)),
        socket(std::move(connection)),
        bell({&page()->data_bell, &page()->receiver_asleep, event_fds[0].get()}, socket.get(),
             options.spin) {
    auto now = state.Lock();
    now->entries.resize(layout.entries() + size_t{1});
  }
  ~Impl();

  RingPage* page() const { return RingLayout::Page(base); }
  void RingSendersBell() const {
    RingDoorbell::Ring({&page()->ack_bell, &page()->sender_asleep, event_fds[1].get()});
  }
  void Progress();
  bool ReadField(uint32_t entry, State* now, Chunk* chunk, bool* broken) const;
  bool IsSane(const Chunk& chunk, uint32_t id) const;
  void Scan(State* now, std::vector<Job>* jobs);
  void Place(const Chunk& chunk, State* now, std::vector<Job>* jobs);
  void Cancel(const Chunk& cancel, State* now, std::vector<Job>* jobs);
  void Drop(uint32_t message, RingAck ack, State* now);
  bool Take(const Job& job);
  void Finish(TicketPtr ticket, Status status, State* now);
  void Fail(State* now);
  RingAck Account(const Job& job, bool sound, State* now);
  void Do(const std::vector<Job>& jobs);
  void AnswerProbes();

  const RingLayout layout;
  const bool checksums;
  const ShmSegment memory;
  std::byte* const base;
  const std::vector<Fd> event_fds;  // data, acks, probes, stop
  const Fd socket;
  RingDoorbell bell;
  Guarded<State> state;
  std::condition_variable copied;
  Thread prober;
};

RingReceiver::Impl::~Impl() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event_fds[3].get(), &one, sizeof(one));
  prober.Join();
}

// Whether a field says something new; false when not.
bool RingReceiver::Impl::ReadField(uint32_t entry, State* now, Chunk* chunk, bool* broken) const {
  const RingField* field = layout.Field(base, entry);
  const uint64_t tail = field->tail.load(std::memory_order_acquire);
  State::Entry& known = now->entries[entry];
  if (tail == known.tail_seen) return false;
  const uint32_t id = field->chunk_id.load(std::memory_order_relaxed);
  *chunk = {.entry = entry,
            .event_id = field->event_id.load(std::memory_order_relaxed),
            .message = field->message.load(std::memory_order_relaxed),
            .index = id & kRingChunkMask,
            .bytes = field->chunk_bytes.load(std::memory_order_relaxed),
            .checksum = field->checksum.load(std::memory_order_relaxed),
            .tail = tail,
            .last = (id & kRingLastChunk) != 0};
  // Tails of an entry grow, and have room for an ack beside them; a chunk stays until its ack.
  *broken = known.held || tail < known.tail_seen || tail >> 56 != 0 || !IsSane(*chunk, id);
  known = {.tail_seen = tail, .held = true};
  return true;
}

bool RingReceiver::Impl::IsSane(const Chunk& chunk, uint32_t id) const {
  const uint32_t flags = id & ~kRingChunkMask;
  if (chunk.entry == layout.entries()) return id == kRingCancel && chunk.bytes == 0;
  if (flags != 0 && flags != kRingLastChunk) return false;
  return chunk.last ? chunk.bytes <= layout.entry_bytes() : chunk.bytes == layout.entry_bytes();
}

// Under the lock: what has come since.
void RingReceiver::Impl::Scan(State* now, std::vector<Job>* jobs) {
  const uint64_t rung = page()->data_bell.load(std::memory_order_acquire);
  if (rung == now->bell_seen) return;
  now->bell_seen = rung;
  // The cancel is read first and done last: chunks stored before it are seen by then.
  Chunk cancel, chunk;
  bool broken = false;
  const bool cancelled = ReadField(layout.entries(), now, &cancel, &broken);
  for (uint32_t entry = 0; entry < layout.entries() && !broken; ++entry) {
    if (ReadField(entry, now, &chunk, &broken) && !broken) Place(chunk, now, jobs);
  }
  if (broken) return Fail(now);
  if (cancelled) Cancel(cancel, now, jobs);
}

void RingReceiver::Impl::Place(const Chunk& chunk, State* now, std::vector<Job>* jobs) {
  if (now->broken) return;
  const auto dropped = now->dropped.find(chunk.message);
  if (dropped != now->dropped.end()) return jobs->push_back({chunk, nullptr, dropped->second});
  TicketPtr ticket;
  const auto matched = now->matched.find(chunk.message);
  if (matched != now->matched.end()) {
    ticket = matched->second;
    if (ticket->event_id != chunk.event_id) return Fail(now);
  } else {
    const auto posted = now->posted.find(chunk.event_id);
    if (posted == now->posted.end() || posted->second->matched) {
      now->unclaimed[chunk.event_id].push_back(chunk);
      return;
    }
    ticket = posted->second;
    ticket->matched = true;
    ticket->message = chunk.message;
    now->matched[chunk.message] = ticket;
  }
  const uint64_t offset = chunk.index * layout.entry_bytes();
  if (offset > ticket->into.size() || chunk.bytes > ticket->into.size() - offset) {
    Finish(ticket,
           Error(StatusCode::kOutOfRange, "event {} has more than {} bytes", chunk.event_id,
                 ticket->into.size()),
           now);
    Drop(chunk.message, RingAck::kTooLarge, now);
    return jobs->push_back({chunk, nullptr, RingAck::kTooLarge});
  }
  if (ticket->arrived.size() <= chunk.index) ticket->arrived.resize(chunk.index + size_t{1});
  const bool beyond = ticket->chunks > 0 && chunk.index >= ticket->chunks;
  const bool two_ends =
      chunk.last && (ticket->chunks > 0 || ticket->arrived.size() > chunk.index + size_t{1});
  if (ticket->arrived[chunk.index] || beyond || two_ends) return Fail(now);
  ticket->arrived[chunk.index] = true;
  if (chunk.last) {
    ticket->chunks = chunk.index + uint64_t{1};
    ticket->bytes = offset + chunk.bytes;
  }
  ++ticket->copying;
  jobs->push_back({chunk, ticket, RingAck::kTaken});
}

void RingReceiver::Impl::Cancel(const Chunk& cancel, State* now, std::vector<Job>* jobs) {
  jobs->push_back({cancel, nullptr, RingAck::kTaken});
  now->dropped.erase(cancel.message);
  const auto matched = now->matched.find(cancel.message);
  if (matched != now->matched.end()) {
    const TicketPtr ticket = matched->second;
    Finish(ticket,
           Error(StatusCode::kDeadlineExceeded, "the sender gave event {} up", ticket->event_id),
           now);
  }
  const auto unclaimed = now->unclaimed.find(cancel.event_id);
  if (unclaimed == now->unclaimed.end()) return;
  std::erase_if(unclaimed->second, [&](const Chunk& chunk) {
    if (chunk.message != cancel.message) return false;
    jobs->push_back({chunk, nullptr, RingAck::kGivenUp});
    return true;
  });
  if (unclaimed->second.empty()) now->unclaimed.erase(unclaimed);
}

void RingReceiver::Impl::Drop(uint32_t message, RingAck ack, State* now) {
  now->dropped[message] = ack;
  if (now->dropped.size() > kDroppedMax) now->dropped.erase(now->dropped.begin());
}

// Under the lock: the receive is over, but for threads that still copy.
// A copy of the pointer: what it was copied from may be what is erased.
void RingReceiver::Impl::Finish(TicketPtr ticket, Status status, State* now) {
  if (ticket->over) return;
  ticket->over = true;
  ticket->status = std::move(status);
  now->posted.erase(ticket->event_id);
  if (ticket->matched) now->matched.erase(ticket->message);
}

// The peer has written what no sender writes: nothing of it can be trusted any more.
void RingReceiver::Impl::Fail(State* now) {
  now->broken = true;
  while (!now->posted.empty()) {
    Finish(now->posted.begin()->second,
           Error(StatusCode::kDataLoss, "the sender's fields make no sense"), now);
  }
}

// Copies a chunk, without the lock. False: it is corrupt.
bool RingReceiver::Impl::Take(const Job& job) {
  EMS_CHECK(job.chunk.bytes <= layout.entry_bytes(), "a chunk of {} bytes", job.chunk.bytes);
  const MutableBytes into =
      job.ticket->into.subspan(job.chunk.index * layout.entry_bytes(), job.chunk.bytes);
  CopyValue(into, layout.Entry(base, job.chunk.entry), nullptr);
  return !checksums || static_cast<uint32_t>(Hash64(into)) == job.chunk.checksum;
}

// Under the lock: a chunk was copied; what to tell the sender.
RingAck RingReceiver::Impl::Account(const Job& job, bool sound, State* now) {
  Ticket& ticket = *job.ticket;
  EMS_CHECK(ticket.copying > 0, "a chunk of event {} was copied twice", ticket.event_id);
  --ticket.copying;
  ++ticket.chunks_arrived;
  if (ticket.over) return RingAck::kGivenUp;
  if (!sound) {
    Finish(job.ticket,
           Error(StatusCode::kDataLoss, "chunk {} of event {} is corrupt", job.chunk.index,
                 job.chunk.event_id),
           now);
    Drop(job.chunk.message, RingAck::kCorrupt, now);
    return RingAck::kCorrupt;
  }
  if (ticket.chunks > 0 && ticket.chunks_arrived == ticket.chunks)
    Finish(job.ticket, OkStatus(), now);
  return RingAck::kTaken;
}

// Does what a scan found, and notifies waiting threads.
void RingReceiver::Impl::Do(const std::vector<Job>& jobs) {
  bool over = false;
  for (const Job& job : jobs) {
    const bool sound = job.ticket == nullptr || Take(job);
    auto now = state.Lock();
    const RingAck ack = job.ticket == nullptr ? job.ack : Account(job, sound, &*now);
    over = over || (job.ticket != nullptr && job.ticket->over);
    EMS_CHECK(now->entries[job.chunk.entry].held, "entry {} is free", job.chunk.entry);
    now->entries[job.chunk.entry].held = false;
    now.Unlock();
    layout.Ack(base, job.chunk.entry)
        ->store(RingAckWord(job.chunk.tail, ack), std::memory_order_release);
    RingSendersBell();
  }
  if (!over) return;
  copied.notify_all();
  bell.Nudge();
}

void RingReceiver::Impl::Progress() {
  std::vector<Job> jobs;
  {
    auto now = state.Lock();
    if (now->broken) return;
    Scan(&*now, &jobs);
  }
  Do(jobs);
}

void RingReceiver::Impl::AnswerProbes() {
  std::vector<std::byte> payload(kRingProbeBytes);
  while (true) {
    std::array<pollfd, 3> fds{{{event_fds[2].get(), POLLIN, 0},
                               {event_fds[3].get(), POLLIN, 0},
                               {socket.get(), POLLIN | POLLRDHUP, 0}}};
    (void)::poll(fds.data(), fds.size(), -1);
    if (fds[1].revents != 0 || fds[2].revents != 0) return;
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t read = ::read(event_fds[2].get(), &count, sizeof(count));
    const uint64_t number = page()->probe.load(std::memory_order_acquire);
    const uint64_t checksum = page()->probe_checksum.load(std::memory_order_relaxed);
    CopyValue(payload, layout.Probe(base).data(), nullptr);
    if (number == 0 || Hash64(payload, number) != checksum) continue;
    page()->probe_ack.store(number, std::memory_order_release);
    RingSendersBell();
  }
}

RingReceiver::RingReceiver(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {
  impl_->prober = Thread("ring-probe", [this] { impl_->AnswerProbes(); });
}
RingReceiver::~RingReceiver() = default;

void RingReceiver::TakeIn() { impl_->Progress(); }

bool RingReceiver::peer_is_gone() const {
  pollfd fd{impl_->socket.get(), POLLIN | POLLRDHUP, 0};
  return impl_->bell.peer_is_gone() || ::poll(&fd, 1, 0) > 0;
}

Result<std::unique_ptr<RingReceiver>> RingReceiver::Offer(Fd socket, const RingOptions& options) {
  if (!RingLayout::IsValid(options.entries, options.entry_bytes))
    return Error(StatusCode::kInvalidArgument,
                 "a ring of {} entries of {} bytes: 1 to {}, of whole pages up to {}",
                 options.entries, options.entry_bytes, kRingEntriesMax,
                 FormatBytes(kRingEntryBytesMax));
  const RingLayout layout(options.entries, options.entry_bytes);
  EMS_ASSIGN_OR_RETURN(ShmSegment memory, ShmSegment::CreatePages(layout.memory_bytes(), true));
  EMS_ASSIGN_OR_RETURN(std::vector<Fd> fds, MakeEventFds());
  const RingHello hello{.entries = options.entries,
                        .checksums = options.checksums ? 1U : 0U,
                        .entry_bytes = options.entry_bytes,
                        .memory_bytes = layout.memory_bytes()};
  const std::array given = {memory.fd(), fds[0].get(), fds[1].get(), fds[2].get()};
  EMS_RETURN_IF_ERROR(SendMessageTo(socket.get(), std::as_bytes(std::span(&hello, 1)), given));
  return std::unique_ptr<RingReceiver>(
      new RingReceiver(std::make_unique<Impl>(  // NOLINT: the constructor is private
          options, std::move(memory), std::move(fds), std::move(socket))));
}

Result<std::unique_ptr<RingReceiver::Posted>> RingReceiver::Post(uint64_t event_id,
                                                                 MutableBytes into) {
  auto ticket = std::make_shared<Posted::Ticket>();
  ticket->event_id = event_id;
  ticket->into = into;
  std::vector<Impl::Job> jobs;
  {
    auto now = impl_->state.Lock();
    if (now->broken) return Error(StatusCode::kDataLoss, "the sender's fields made no sense");
    if (now->posted.size() >= kPostedMax)
      return Error(StatusCode::kResourceExhausted, "{} receives are under way", kPostedMax);
    if (!now->posted.emplace(event_id, ticket).second)
      return Error(StatusCode::kAlreadyExists, "event {} is being received", event_id);
    // Chunks that came before the receive; those of a later message with this id stay unclaimed.
    const auto unclaimed = now->unclaimed.find(event_id);
    if (unclaimed != now->unclaimed.end()) {
      const std::deque<Chunk> chunks = std::exchange(unclaimed->second, {});
      now->unclaimed.erase(unclaimed);
      for (const Chunk& chunk : chunks) impl_->Place(chunk, &*now, &jobs);
    }
  }
  impl_->Do(jobs);
  return std::unique_ptr<Posted>(new Posted(this, std::move(ticket)));  // NOLINT: as above
}

Result<uint64_t> RingReceiver::Receive(uint64_t event_id, MutableBytes into, Duration timeout) {
  EMS_ASSIGN_OR_RETURN(const std::unique_ptr<Posted> posted, Post(event_id, into));
  return posted->Wait(timeout);
}

RingReceiver::Posted::Posted(RingReceiver* receiver, std::shared_ptr<Ticket> ticket)
    : receiver_(receiver), ticket_(std::move(ticket)) {}

RingReceiver::Posted::~Posted() {
  Impl& impl = *receiver_->impl_;
  auto now = impl.state.Lock();
  if (!ticket_->over) {
    if (ticket_->matched) impl.Drop(ticket_->message, RingAck::kGivenUp, &*now);
    impl.Finish(ticket_, Error(StatusCode::kDeadlineExceeded, "abandoned"), &*now);
  }
  // As long as a memcpy of an entry takes.
  now.Wait(impl.copied, [this](const Impl::State&) { return ticket_->copying == 0; });
}

bool RingReceiver::Posted::done() {
  receiver_->impl_->Progress();
  auto now = receiver_->impl_->state.Lock();
  return ticket_->over && ticket_->copying == 0;
}

Result<uint64_t> RingReceiver::Posted::Wait(Duration timeout) {
  Impl& impl = *receiver_->impl_;
  const Status waited = impl.bell.Wait(Deadline::After(timeout), [this] { return done(); });
  if (!waited.ok()) return Prefixed(waited, fmt::format("event {}", ticket_->event_id));
  auto now = impl.state.Lock();
  if (!ticket_->status.ok()) return ticket_->status;
  return ticket_->bytes;
}

}  // namespace ems::fabric
