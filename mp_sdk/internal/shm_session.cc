#include "mp_sdk/internal/shm_session.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>

#include "common/check.h"
#include "common/full_fence.h"
#include "common/logging.h"
#include "common/thread_cell.h"
#include "fabric/rpc/rpc_channel.h"

namespace ems::internal {
namespace {

using fabric::MappedMemory;
using Outcome = fabric::MessageReceiver::Outcome;
using shm::ControlPage;
using shm::SessionMessage;
using shm::SessionOp;
using shm::SessionPage;

constexpr uint32_t kAttachId = 1;  // the frame after the greeting

// Why a message says no.
Status ReasonOf(const SessionMessage& message) {
  const auto end = std::ranges::find(message.text, '\0');
  const std::string_view text(message.text.data(), static_cast<size_t>(end - message.text.begin()));
  if (message.status > wire::kWireStatusMax) {
    return Error(StatusCode::kDataLoss, "unknown status {}: {}", message.status, Printable(text));
  }
  return wire::ToStatus(static_cast<wire::WireStatus>(message.status), text);
}

Status WaitReadable(int fd, Deadline deadline) {
  pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
  while (true) {
    const int ready = ::poll(&entry, 1, deadline.RemainingMs());
    if (ready > 0) return OkStatus();
    if (ready == 0) return Error(StatusCode::kDeadlineExceeded, "no answer to Attach");
    if (errno != EINTR) {
      return Error(StatusCode::kUnavailable, "poll: {}", fabric::ErrnoText(errno));
    }
  }
}

// Exactly `into`, and not a byte more: the next message brings descriptors, which only a reader who
// expects them receives.
Status ReceiveExactly(int fd, MutableBytes into, Deadline deadline) {
  while (!into.empty()) {
    EMS_RETURN_IF_ERROR(WaitReadable(fd, deadline));
    const ssize_t got = ::recv(fd, into.data(), into.size(), MSG_DONTWAIT);
    if (got == 0) return Error(StatusCode::kUnavailable, "Attach: closed by the server");
    if (got < 0 && errno != EAGAIN && errno != EINTR) {
      return Error(StatusCode::kUnavailable, "Attach: {}", fabric::ErrnoText(errno));
    }
    if (got > 0) into = into.subspan(static_cast<size_t>(got));
  }
  return OkStatus();
}

// What a view counts for: as the server counts it, or a client of many small views would be cut
// off. Empty values count, too.
uint64_t PinWeight(uint64_t bytes) { return bytes + shm::kObjectHeaderBytes; }

bool IsTableLength(uint64_t bytes) {
  const uint64_t buckets = bytes / shm::TableBytesOf(1);
  return std::has_single_bit(buckets) && buckets >= 2 && buckets <= shm::kBucketsPerShardMax &&
         shm::TableBytesOf(buckets) == bytes;
}

}  // namespace

Result<std::shared_ptr<ShmSession>> ShmSession::Attach(const fabric::Address& address,
                                                       const Terms& terms, Duration timeout,
                                                       std::function<void()> wake) {
  const Deadline deadline = Deadline::After(timeout);
  std::shared_ptr<ShmSession> session(new ShmSession(terms.ns, std::move(wake)));
  EMS_RETURN_IF_ERROR(session->Greet(address, terms, deadline));
  EMS_RETURN_IF_ERROR(session->AwaitWelcome(deadline));
  // The tables in use are needed by whatever comes first.
  for (uint64_t i = 0; i < shm::kIndexShards; ++i) {
    const uint64_t word =
        session->control_->LoadWord(offsetof(ControlPage, shards) + i * sizeof(uint64_t));
    if (shm::TableOf(word) != 0) session->Want(SessionOp::kTable, shm::TableOf(word));
  }
  return session;
}

// The frame Attach and its answer; then the connection speaks SessionMessages.
Status ShmSession::Greet(const fabric::Address& address, const Terms& terms, Deadline deadline) {
  const std::string_view token = terms.token;
  if (token.size() > wire::kTokenBytesMax) {
    return Error(StatusCode::kInvalidArgument, "shm_token of {} bytes, {} at most", token.size(),
                 wire::kTokenBytesMax);
  }
  if (!address.is_unix()) {
    return Error(StatusCode::kInvalidArgument, "{} is not a Unix socket: no descriptor can pass",
                 fabric::FormatHostPort(address.host, address.port));
  }
  EMS_ASSIGN_OR_RETURN(const std::unique_ptr<fabric::RpcChannel> channel,
                       fabric::RpcChannel::Open(address, deadline.Remaining(), terms.cluster));
  if (terms.boot_id != 0 && channel->hello().boot_id != terms.boot_id)
    return Error(StatusCode::kUnavailable, "another server listens at {}", address.unix_path);
  socket_ = channel->Release();
  wire::FrameHeader header;
  header.op = wire::Op::kAttach;
  header.request_id = kAttachId;
  header.deadline_ms = static_cast<uint32_t>(deadline.RemainingMs());
  header.namespace_id = identity_.ns.id.value();
  header.namespace_generation = identity_.ns.generation;
  header.body_bytes = token.size();
  wire::SealRequest(AsBytes(token), &header);
  std::string frame(AsText(wire::RawBytes(header)));
  frame.append(token);
  EMS_RETURN_IF_ERROR(fabric::SendMessageTo(socket_.get(), AsBytes(frame), {}));
  std::array<std::byte, wire::kHeaderBytes> raw;
  EMS_RETURN_IF_ERROR(ReceiveExactly(socket_.get(), raw, deadline));
  EMS_RETURN_IF_ERROR(wire::ParseAnswer(raw, wire::Op::kAttach, kAttachId, &header));
  if (header.status == wire::WireStatus::kOk && header.body_bytes == 0) return OkStatus();
  std::array<std::byte, wire::kErrorTextMax> text;
  const MutableBytes body =
      std::span(text).first(std::min<uint64_t>(header.body_bytes, text.size()));
  EMS_RETURN_IF_ERROR(ReceiveExactly(socket_.get(), body, deadline));
  if (header.status == wire::WireStatus::kOk) {
    return Error(StatusCode::kInvalidArgument, "Attach: an answer of {} bytes", header.body_bytes);
  }
  if (!wire::AnswerMatches(header, body)) {
    return Error(StatusCode::kDataLoss, "Attach: the answer does not match its checksum");
  }
  return wire::ToStatus(header.status, AsText(body));
}

Status ShmSession::AwaitWelcome(Deadline deadline) {
  SessionMessage welcome;
  while (true) {
    EMS_RETURN_IF_ERROR(WaitReadable(socket_.get(), deadline));
    const Outcome outcome = receiver_.Receive(
        socket_.get(), std::as_writable_bytes(std::span(&welcome, 1)), &descriptors_);
    if (outcome == Outcome::kMessage) break;
    if (outcome == Outcome::kEnded) {
      return Error(StatusCode::kUnavailable, "closed by the server before its Welcome");
    }
  }
  const Status taken = TakeWelcome(welcome);
  descriptors_.clear();
  return taken;
}

Status ShmSession::TakeWelcome(const SessionMessage& welcome) {
  if (welcome.op != SessionOp::kWelcome) {
    return Error(StatusCode::kInvalidArgument, "message {} where a Welcome was due",
                 static_cast<uint32_t>(welcome.op));
  }
  EMS_RETURN_IF_ERROR(ReasonOf(welcome));
  if (descriptors_.size() != 2) {
    return Error(StatusCode::kInvalidArgument, "a Welcome with {} descriptors",
                 descriptors_.size());
  }
  EMS_ASSIGN_OR_RETURN(control_, MappedMemory::Map(descriptors_[0], shm::kControlBytes));
  ControlPage page;
  control_->Read(0, {reinterpret_cast<std::byte*>(&page), offsetof(ControlPage, view)});
  if (page.magic != shm::kControlMagic || page.version != shm::kLayoutVersion) {
    return Error(StatusCode::kInvalidArgument, "control page of layout {}, this client knows {}",
                 page.version, shm::kLayoutVersion);
  }
  if (page.namespace_id != identity_.ns.id.value() ||
      page.namespace_generation != identity_.ns.generation) {
    return Error(StatusCode::kInvalidArgument, "control page of namespace {}.{}, asked for {}.{}",
                 page.namespace_id, page.namespace_generation, identity_.ns.id.value(),
                 identity_.ns.generation);
  }
  EMS_ASSIGN_OR_RETURN(page_memory_, fabric::SharedPage::Map(descriptors_[1], shm::kSessionBytes));
  page_ = reinterpret_cast<SessionPage*>(page_memory_->writable_address());
  identity_.boot_id = page.boot_id;
  session_id_ = welcome.id;
  secret_ = welcome.secret;
  pin_bytes_max_ = welcome.bytes;
  return OkStatus();
}

// The last view is gone, too: only now may the server forget the hazards. Shut down, because a
// forked child may hold the descriptor.
ShmSession::~ShmSession() {
  if (socket_.valid() && fork_mark_.here()) ::shutdown(socket_.get(), SHUT_RDWR);
}

void ShmSession::Want(SessionOp op, uint64_t id) {
  const TimePoint now = Clock::System().Now();
  {
    auto asks = asks_.Lock();
    TimePoint& again_at = asks->again_at[{op, id}];
    if (now < again_at || asks->queue.size() >= kAsksMax) return;
    again_at = now + kAskAgain;
    asks->queue.emplace_back(op, id);
    // What was refused long ago is forgotten before the list grows without end.
    if (asks->again_at.size() > 2 * kAsksMax) {
      std::erase_if(asks->again_at, [now](const auto& ask) { return ask.second <= now; });
    }
  }
  wake_();
}

void ShmSession::Touch(std::span<const Hash128> hashes) {
  // The server may read the words while they are written: it touches another object then, or none.
  uint64_t at = page_->touch_count.fetch_add(hashes.size(), std::memory_order_release);
  for (const Hash128& hash : hashes) {
    shm::Touch& touch = page_->touches[at++ % shm::kTouchesMax];
    touch.hash_lo.store(hash.lo, std::memory_order_relaxed);
    touch.hash_hi.store(hash.hi, std::memory_order_relaxed);
  }
}

uint64_t ShmSession::sample_below() const {
  return control_->LoadWord(offsetof(ControlPage, sample_below));
}

void ShmSession::Sample(Hash128 hash) {
  const uint64_t at = page_->sample_count.fetch_add(1, std::memory_order_release);
  shm::Touch& sample = page_->samples[at % shm::kSamplesMax];  // read meanwhile: as a touch
  sample.hash_lo.store(hash.lo, std::memory_order_relaxed);
  sample.hash_hi.store(hash.hi, std::memory_order_relaxed);
}

void ShmSession::Count(const ReadTally& tally) {
  static_assert(kThreadCells == shm::kReadCells);
  const size_t cell = ThreadCell();
  uint32_t end = page_->read_cell_end.load(std::memory_order_relaxed);
  while (end <= cell &&
         !page_->read_cell_end.compare_exchange_weak(end, static_cast<uint32_t>(cell) + 1)) {
  }
  shm::ReadCell& counts = page_->read_cells[cell];
  const auto add = [cell](std::atomic<uint64_t>* word, uint64_t by) {
    if (by > 0) AddInCell(cell, word, by);
  };
  add(&counts.hits, tally.hits);
  add(&counts.misses, tally.misses);
  add(&counts.bytes, tally.bytes);
  add(&counts.found, tally.found);
  add(&counts.absent, tally.absent);
}

ShmSession::Pinned ShmSession::Pin(const FoundObject& found, const ObjectReader& reader,
                                   ObjectView* view) {
  const uint64_t bytes = PinWeight(found.payload_bytes);
  const uint64_t before = pinned_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  const std::optional<uint32_t> hazard = bytes > pin_bytes_max_ || before > pin_bytes_max_ - bytes
                                             ? std::nullopt
                                             : hazards_.Take(&page_->hazard_end);
  if (!hazard) {
    pinned_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    return Pinned::kFull;
  }
  views_.fetch_add(1, std::memory_order_seq_cst);
  page_->hazards[*hazard].store(found.entry_word, std::memory_order_relaxed);
  // Partner: the server empties the entry, fences, and reads the hazards. Either it finds this one
  // or the entry is found empty here.
  FullFence();
  if (!reader.StillThere(found)) {
    Unpin(*hazard, found.payload_bytes);
    return Pinned::kChanged;
  }
  *view = ObjectView(shared_from_this(), *hazard,
                     {found.segment->address() + found.payload_at, found.payload_bytes},
                     found.checksum);
  return Pinned::kYes;
}

void ShmSession::Unpin(uint32_t hazard, uint64_t payload_bytes) {
  if (!fork_mark_.here()) return;  // the view is the parent's
  // Release: all reads of the view's bytes come before.
  page_->hazards[hazard].store(0, std::memory_order_release);
  hazards_.Give(hazard, &page_->hazard_end);
  const uint64_t pinned =
      pinned_bytes_.fetch_sub(PinWeight(payload_bytes), std::memory_order_relaxed);
  EMS_CHECK(pinned >= PinWeight(payload_bytes), "{} B released of {} B pinned", payload_bytes,
            pinned);
  views_.fetch_sub(1, std::memory_order_release);
}

std::optional<StagedSession> ShmSession::staged() const {
  const uint64_t bytes = staged_bytes_.load(std::memory_order_acquire);
  if (bytes == 0 || staging_stopped_.load(std::memory_order_relaxed)) return std::nullopt;
  return StagedSession{.session = session_id_, .secret = secret_, .bytes = bytes};
}

void ShmSession::Offer(const fabric::SharedMemory& memory, uint64_t bytes) {
  EMS_CHECK(bytes <= memory.bytes().size(), "{} B of {}", bytes, memory.bytes().size());
  Outgoing out;
  out.message.op = SessionOp::kRegister;
  out.message.bytes = bytes;
  out.fd = memory.fd();
  outbox_.push_back(out);
}

bool ShmSession::Send() {
  {
    auto asks = asks_.Lock();
    for (const auto& [op, id] : asks->queue) {
      outbox_.emplace_back();
      outbox_.back().message.op = op;
      outbox_.back().message.id = id;
    }
    asks->queue.clear();
  }
  for (; unsent_ < outbox_.size(); ++unsent_) {
    const Outgoing& out = outbox_[unsent_];
    const Status sent =
        fabric::SendMessageTo(socket_.get(), wire::RawBytes(out.message),
                              std::span(&out.fd, out.fd >= 0 ? size_t{1} : size_t{0}));
    if (sent.code() == StatusCode::kResourceExhausted) return true;
    if (!sent.ok()) return false;
  }
  outbox_.clear();
  unsent_ = 0;
  return true;
}

bool ShmSession::Receive(ReaderGate* gate) {
  SessionMessage message;
  while (true) {
    const Outcome outcome = receiver_.Receive(
        socket_.get(), std::as_writable_bytes(std::span(&message, 1)), &descriptors_);
    if (outcome != Outcome::kMessage) return outcome == Outcome::kNotYet;
    switch (message.op) {
      case SessionOp::kTable:
      case SessionOp::kSegment:
        OnMemory(message, gate);
        break;
      case SessionOp::kTableGone:
        OnGone(SessionOp::kTable, message.id, gate);
        break;
      case SessionOp::kSegmentGone:
        OnGone(SessionOp::kSegment, message.id, gate);
        break;
      case SessionOp::kRegister:
        if (message.status == 0) {
          staged_bytes_.store(message.bytes, std::memory_order_release);
        } else {
          EMS_LOG(kWarn, "mp_sdk", "staging memory refused reason=\"{}\"",
                  ToString(ReasonOf(message)));
        }
        break;
      default:
        EMS_LOG(kWarn, "mp_sdk", "session ended by an unknown message op={}",
                static_cast<uint32_t>(message.op));
        return false;
    }
    descriptors_.clear();
  }
}

void ShmSession::OnMemory(const SessionMessage& message, ReaderGate* gate) {
  Status status = ReasonOf(message);
  if (status.ok()) status = MapMemory(message, gate);
  // Gone is what a memory may be by the time it is asked for.
  if (!status.ok() && status.code() != StatusCode::kNotFound) {
    EMS_LOG(kWarn, "mp_sdk", "{} not mapped id={} reason=\"{}\"",
            message.op == SessionOp::kTable ? "table" : "segment", message.id, ToString(status));
  }
  const TimePoint again_at = Clock::System().Now() + kAskAgain;
  auto asks = asks_.Lock();
  if (status.ok()) {
    asks->again_at.erase({message.op, message.id});
  } else {
    asks->again_at[{message.op, message.id}] = again_at;
  }
}

Status ShmSession::MapMemory(const SessionMessage& message, ReaderGate* gate) {
  Memories& memories = memories_[message.op];
  if (memories.contains(message.id)) return OkStatus();
  const bool named =
      message.op == SessionOp::kTable ? message.id < uint64_t{1} << 62 : message.id <= UINT32_MAX;
  if (!named || memories.size() >= MemoryMap::kMost) {
    return Error(StatusCode::kResourceExhausted, "memory {} beside {} others", message.id,
                 memories.size());
  }
  if (message.op == SessionOp::kTable && !IsTableLength(message.bytes)) {
    return Error(StatusCode::kInvalidArgument, "a table of {} bytes", message.bytes);
  }
  if (descriptors_.size() != 1) {
    return Error(StatusCode::kInvalidArgument, "{} descriptors where one was due",
                 descriptors_.size());
  }
  EMS_ASSIGN_OR_RETURN(std::shared_ptr<MappedMemory> memory,
                       MappedMemory::Map(descriptors_[0], message.bytes));
  if (auto outgrown = MapOf(message.op).Insert(message.id, memory.get()); outgrown != nullptr) {
    gone_.push_back({.grace = gate->Retire(), .viewed = false, .what = std::move(outgrown)});
  }
  memories.emplace(message.id, std::move(memory));
  return OkStatus();
}

void ShmSession::OnGone(SessionOp op, uint64_t id, ReaderGate* gate) {
  Memories& memories = memories_[op];
  if (op == SessionOp::kSegment) {  // as of the end of this call
    outbox_.emplace_back();
    outbox_.back().message.op = SessionOp::kSegmentDropped;
    outbox_.back().message.id = id;
  }
  const auto found = memories.find(id);
  if (found == memories.end()) return;
  MapOf(op).Erase(id);
  found->second->Blank();
  gone_.push_back({.grace = gate->Retire(), .viewed = true, .what = std::move(found->second)});
  memories.erase(found);
}

void ShmSession::DropGone(uint64_t ended) {
  // After the grace period no new view can be made in what is gone, so none at all means none in
  // it.
  const bool views = views_.load(std::memory_order_seq_cst) != 0;
  std::erase_if(gone_,
                [&](const Gone& gone) { return gone.grace <= ended && !(gone.viewed && views); });
}

void ShmSession::End() {
  alive_.store(false, std::memory_order_release);
  StopStaging();
}

}  // namespace ems::internal
