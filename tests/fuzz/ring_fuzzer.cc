// Any bytes, as what the other end of a ring writes into the memory that both share: fields with
// their bells, acks, and the offer itself. A message is whole and in its buffer or its receive
// fails; no chunk is acknowledged twice, or before it was there; nothing is written beyond a
// buffer.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "common/check.h"
#include "common/hash.h"
#include "fabric/emulated/ring_doorbell.h"
#include "fabric/emulated/ring_layout.h"
#include "fabric/emulated/ring_pair.h"
#include "fabric/net/fd_message.h"
#include "fabric/shm/shm_segment.h"
#include "fabric/shm/shm_transport.h"
#include "tests/fuzz/fuzz_input.h"

namespace ems::fabric {
namespace {

using testing::FuzzInput;

constexpr uint32_t kEntries = 3;
constexpr uint64_t kEntryBytes = 4 * kKiB;
constexpr uint64_t kEvents = 4;  // event ids are below
constexpr Duration kNotNow{0};

SocketPair Sockets() {
  auto pair = MakeSocketPair();
  EMS_CHECK(pair.ok());
  return *std::move(pair);
}

// ---- What a receiver is told.

// A receiver, and the memory of its ring as its sender has it. Threading: one thread.
class HostileSender final {
 public:
  explicit HostileSender(bool checksums) : layout_(kEntries, kEntryBytes) {
    SocketPair sockets = Sockets();
    auto receiver = RingReceiver::Offer(
        std::move(sockets.one),
        {.entries = kEntries, .entry_bytes = kEntryBytes, .checksums = checksums, .spin = kNotNow});
    EMS_CHECK(receiver.ok());
    receiver_ = *std::move(receiver);
    socket_ = std::move(sockets.other);
    MessageReceiver messages;
    RingHello hello;
    EMS_CHECK(messages.Receive(socket_.get(), std::as_writable_bytes(std::span(&hello, 1)),
                               &fds_) == MessageReceiver::Outcome::kMessage);
    memory_ = *SharedPage::Map(fds_[0], hello.memory_bytes);
    std::fill_n(layout_.Entry(base(), 0), kEntries * kEntryBytes, std::byte{0x5a});
  }

  RingReceiver* receiver() { return receiver_.get(); }
  // Stores a field. Whether it is one that a sender may store now.
  void Store(FuzzInput* input) {
    const auto entry = static_cast<uint32_t>(input->TakeUpTo(kEntries));
    const auto how = input->Take<uint8_t>();
    RingField* field = layout_.Field(base(), entry);
    uint32_t chunk_id = input->Take<uint8_t>() % 8;
    if ((how & 1) != 0) chunk_id |= kRingLastChunk;
    if (entry == kEntries) chunk_id = kRingCancel;
    if (how >= 0xf0) chunk_id = input->Take<uint32_t>();
    uint32_t bytes = (how & 1) != 0 ? input->Take<uint16_t>() % (kEntryBytes + 1) : kEntryBytes;
    if (entry == kEntries) bytes = 0;
    if (how >= 0xe0) bytes = input->Take<uint32_t>();
    uint64_t tail = ++tails_;
    if (how >= 0xd8 && how < 0xe0) tail = input->Take<uint64_t>();
    field->event_id = input->Take<uint8_t>() % kEvents;
    field->message = input->Take<uint8_t>() % 4;
    field->chunk_id = chunk_id;
    field->chunk_bytes = bytes;
    field->checksum = (how & 2) != 0 ? Sum(entry, bytes) : input->Take<uint8_t>();
    field->tail = tail;
    stored_[entry].push_back(tail);
  }
  void Ring() {
    RingPage* page = RingLayout::Page(base());
    internal::RingDoorbell::Ring({&page->data_bell, &page->receiver_asleep, fds_[1].get()});
  }
  // An ack is of a tail that was stored there, and never goes back to an earlier one.
  void CheckAcks() {
    for (uint32_t entry = 0; entry <= kEntries; ++entry) {
      const uint64_t word = *layout_.Ack(base(), entry);
      if (word == acked_[entry]) continue;
      EMS_CHECK((word & 0xff) <= static_cast<uint64_t>(RingAck::kCorrupt));
      EMS_CHECK(std::ranges::count(stored_[entry], word >> 8) > 0);
      EMS_CHECK(word >> 8 > acked_[entry] >> 8);
      acked_[entry] = word;
    }
  }

 private:
  std::byte* base() const { return memory_->writable_address(); }
  uint32_t Sum(uint32_t entry, uint32_t bytes) const {
    if (entry >= kEntries || bytes > kEntryBytes) return 0;
    return static_cast<uint32_t>(Hash64({layout_.Entry(base(), entry), bytes}));
  }

  const RingLayout layout_;
  std::unique_ptr<RingReceiver> receiver_;
  Fd socket_;
  std::vector<Fd> fds_;
  std::unique_ptr<SharedPage> memory_;
  uint64_t tails_ = 0;
  std::array<std::vector<uint64_t>, kEntries + 1> stored_;
  std::array<uint64_t, kEntries + 1> acked_{};
};

// A receive under way, and its buffer, of exactly its size.
struct Receive {
  std::vector<std::byte> into;
  std::unique_ptr<RingReceiver::Posted> posted;
};

void CheckReceived(Receive* receive) {
  const auto bytes = receive->posted->Wait(kNotNow);
  if (!bytes.ok()) {
    const StatusCode code = bytes.status().code();
    EMS_CHECK(code == StatusCode::kDeadlineExceeded || code == StatusCode::kOutOfRange ||
                  code == StatusCode::kDataLoss,
              "{}", ToString(bytes.status()));
    return;
  }
  EMS_CHECK(*bytes <= receive->into.size());
  for (uint64_t i = 0; i < *bytes; ++i) EMS_CHECK(receive->into[i] == std::byte{0x5a});
}

void RunReceiver(FuzzInput* input) {
  constexpr int kStepsMax = 64;
  HostileSender sender(input->Take<uint8_t>() % 2 == 1);
  std::map<uint64_t, Receive> receives;
  for (int step = 0; step < kStepsMax && !input->empty(); ++step) {
    const auto what = input->Take<uint8_t>();
    const uint64_t event = what / 8 % kEvents;
    if (what % 8 < 4) {
      sender.Store(input);
      if (what % 8 < 3) sender.Ring();
    } else if (what % 8 == 4) {
      Receive receive{.into = std::vector<std::byte>(input->TakeUpTo(3 * kEntryBytes)),
                      .posted = {}};
      auto posted = sender.receiver()->Post(event, receive.into);
      const auto old = receives.find(event);
      if (!posted.ok()) {
        const StatusCode code = posted.status().code();
        EMS_CHECK(code == StatusCode::kDataLoss ||
                  (code == StatusCode::kAlreadyExists && old != receives.end()));
        continue;
      }
      // Who waits for an event that is over may wait for its next message.
      if (old != receives.end()) {
        EMS_CHECK(old->second.posted->done());
        receives.erase(old);
      }
      receive.posted = *std::move(posted);
      receives.emplace(event, std::move(receive));
    } else if (what % 8 == 5) {
      receives.erase(event);
    } else if (const auto at = receives.find(event); at != receives.end()) {
      if (at->second.posted->done()) {
        CheckReceived(&at->second);
        receives.erase(at);
      }
    } else {
      sender.receiver()->TakeIn();
    }
    sender.CheckAcks();
  }
  for (auto& [event, receive] : receives) CheckReceived(&receive);
  sender.CheckAcks();
}

// ---- What a sender is told.

struct Offer {
  RingHello hello;
  std::vector<Fd> fds;
  ShmSegment memory;
};

Offer MakeOffer(FuzzInput* input) {
  const auto how = input->Take<uint8_t>();
  const RingLayout layout(kEntries, kEntryBytes);
  RingHello hello{.entries = kEntries,
                  .checksums = how & 1U,
                  .entry_bytes = kEntryBytes,
                  .memory_bytes = layout.memory_bytes()};
  auto memory = ShmSegment::CreatePages(layout.memory_bytes(), true);
  EMS_CHECK(memory.ok());
  Offer offer{.hello = hello, .fds = {}, .memory = *std::move(memory)};
  for (int i = 0; i < 3; ++i) offer.fds.emplace_back(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (how >= 0xc0) {  // another offer
    offer.hello = input->Take<RingHello>();
    if (how >= 0xd0) offer.hello.magic = RingHello::kMagic;
    if (how >= 0xe0 && RingLayout::IsValid(offer.hello.entries, offer.hello.entry_bytes)) {
      offer.hello.memory_bytes =
          RingLayout(offer.hello.entries, offer.hello.entry_bytes).memory_bytes();
    }
  }
  if (how >= 0xb0 && how < 0xc0) offer.fds.pop_back();
  if (how >= 0xa0 && how < 0xb0) offer.fds.back() = Fd(::dup(offer.memory.fd()));
  return offer;
}

void RunSender(FuzzInput* input) {
  constexpr int kSendsMax = 4;
  SocketPair sockets = Sockets();
  const Offer offer = MakeOffer(input);
  std::vector<int> given = {offer.memory.fd()};
  for (const Fd& fd : offer.fds) given.push_back(fd.get());
  EMS_CHECK(
      SendMessageTo(sockets.one.get(), std::as_bytes(std::span(&offer.hello, 1)), given).ok());
  auto sender = RingSender::Accept(std::move(sockets.other), kNotNow, kNotNow);
  const RingLayout layout(offer.hello.entries, offer.hello.entry_bytes);
  if (!sender.ok()) {
    const StatusCode code = sender.status().code();
    EMS_CHECK(code == StatusCode::kDataLoss, "{}", ToString(sender.status()));
    return;
  }
  EMS_CHECK(given.size() == 4 && RingLayout::IsValid(offer.hello.entries, offer.hello.entry_bytes));
  EMS_CHECK(layout.memory_bytes() <= offer.memory.size_bytes());
  std::byte* const base = offer.memory.bytes().data();
  const std::vector<std::byte> message(2 * kEntryBytes, std::byte{0x5a});
  for (int i = 0; i < kSendsMax && !input->empty(); ++i) {
    // Acks that lie there before: of these tails the sender knows nothing, or by chance the next.
    for (uint32_t entry = 0; entry <= kEntries && entry <= layout.entries(); ++entry) {
      const auto how = input->Take<uint8_t>();
      if (how % 4 == 0) continue;
      const uint64_t tail = how % 4 == 1 ? how / 4 % 8 : input->Take<uint64_t>();
      *layout.Ack(base, entry) = tail << 8 | how / 32;
    }
    const Status sent =
        (*sender)->Send(input->Take<uint8_t>() % kEvents,
                        std::span(message).first(input->TakeUpTo(message.size())), kNotNow);
    for (uint32_t entry = 0; entry < layout.entries(); ++entry) {
      const RingField* field = layout.Field(base, entry);
      if (field->tail == 0) continue;
      EMS_CHECK(field->chunk_bytes <= layout.entry_bytes());
      // Nothing is taken for sent but by an ack of it.
      if (i == 0 && sent.ok())
        EMS_CHECK(*layout.Ack(base, entry) == RingAckWord(field->tail, RingAck::kTaken));
    }
  }
}

}  // namespace
}  // namespace ems::fabric

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ems::testing::FuzzInput input(data, size);
  if (input.Take<uint8_t>() % 2 == 0) {
    ems::fabric::RunReceiver(&input);
  } else {
    ems::fabric::RunSender(&input);
  }
  return 0;
}
