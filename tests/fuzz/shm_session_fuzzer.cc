// Clients of shared memory that say and do anything: messages, descriptors and bytes out of place,
// any words on the session page, while objects come and go. Each question is answered or ends the
// session; nothing that is given away can be written but the page; registered memory is what it has
// to be; and when all have hung up nothing of them is left and the objects are what they were.
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/checksum.h"
#include "common/logging.h"
#include "common/object_key.h"
#include "fabric/net/fd_message.h"
#include "fabric/shm/shm_segment.h"
#include "fabric/shm/shm_transport.h"
#include "mp_server/memory/segment_pool.h"
#include "mp_server/shm/shm_service.h"
#include "mp_server/store/namespace_store.h"
#include "proto/shm_layout.h"
#include "tests/fuzz/fuzz_input.h"

namespace ems::server {
namespace {

using fabric::Fd;
using fabric::MessageReceiver;
using shm::SessionMessage;
using shm::SessionOp;
using shm::SessionPage;
using testing::FuzzInput;
using wire::WireStatus;

constexpr NamespaceRef kNs{NamespaceId(1), 1};
constexpr NamespaceRef kOther{NamespaceId(2), 1};
constexpr size_t kPeersMax = 3;
constexpr size_t kStepsMax = 48;
constexpr uint64_t kRegisteredMax = 256 * kKiB;
constexpr uint64_t kPageBytes = 4 * kKiB;
constexpr Duration kPatience = std::chrono::seconds(5);

// Waits for another thread, which is about to do it.
template <typename Holds>
void Await(Holds holds, const char* what) {
  const Deadline deadline = Deadline::After(kPatience);
  while (!holds()) {
    EMS_CHECK(!deadline.Passed(), "{}", what);
    std::this_thread::yield();
  }
}

// A store with two namespaces, and its sessions. Shared by all inputs. Threading: one thread.
class World final {
 public:
  World() : pool_(PoolOptions()) {
    EMS_CHECK(log::Init("error").ok());
    EMS_CHECK(pool_.WaitReady(PoolOptions().bytes, Deadline::After(kPatience)).ok());
    ObjectStore::Options options;
    options.pool = &pool_;
    store_ = std::make_unique<ObjectStore>(options);
    NamespaceTable table;
    table.version = 1;
    for (const NamespaceRef ref : {kNs, kOther}) {
      NamespaceInfo info;
      info.ref = ref;
      info.name = "ns" + std::to_string(ref.id.value());
      table.by_id[ref.id] = info;
    }
    store_->SetNamespaces(table, 1.0);
    store_->SetOwnedSlots(std::bitset<kSlotCount>().set());
    metrics_.sessions = registry_.AddGauge("sessions", "");
    metrics_.registered_bytes = registry_.AddGauge("registered", "");
    metrics_.refused = registry_.AddCounter("refused", "");
    metrics_.attached = registry_.AddCounter("attached", "");
    auto started = ShmService::Start({.store = store_.get(),
                                      .pool = &pool_,
                                      .sessions_max = kPeersMax - 1,
                                      .registered_bytes_max = kRegisteredMax,
                                      .drop_patience = Duration(0)},
                                     metrics_);
    EMS_CHECK(started.ok(), "{}", ToString(started.status()));
    service_ = *std::move(started);
    Put(kNs, "steady", 1000);
  }

  void Put(NamespaceRef ns, std::string_view key, uint64_t bytes) {
    auto room = store_->Reserve(ns, SlotId(0), key, bytes);
    if (!room.ok()) return;
    std::ranges::fill(room->value(), static_cast<std::byte>(key.back()));
    HashPieces(room->value(), room->piece_sums());
    const uint64_t checksum = CombinePieces(room->piece_sums());
    bool stored = false;
    EMS_CHECK(ObjectStore::Publish(*std::move(room), checksum, {.overwrite = true}, &stored).ok());
  }
  void Remove(NamespaceRef ns, std::string_view key) { (void)store_->Remove(ns, key); }
  void Tidy() { (void)store_->EvictToWatermark(); }
  Fd Attach(NamespaceRef ns) {
    std::array<int, 2> fds{};
    EMS_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) == 0);
    service_->Adopt(Fd(fds[1]), ns, "");
    return Fd(fds[0]);
  }
  ShmService* service() { return service_.get(); }
  double registered_bytes() const { return metrics_.registered_bytes.value(); }
  // After all peers have hung up.
  void CheckQuiet() {
    Await([&] { return metrics_.sessions.value() == 0; }, "sessions that do not end");
    EMS_CHECK(registered_bytes() == 0);
    for (const NamespaceUsage& usage : store_->Usage()) EMS_CHECK(usage.retired_bytes == 0);
    const ObjectPin pin = store_->Get(kNs, "steady", true);
    EMS_CHECK(pin && pin.value().size() == 1000 && pin.Intact());
  }

 private:
  static SegmentPool::Options PoolOptions() {
    SegmentPool::Options options;
    options.bytes = 16 * kMiB;
    options.segment_bytes = 2 * kMiB;
    options.huge_pages = fabric::HugePages::kOff;
    return options;
  }

  SegmentPool pool_;
  std::unique_ptr<ObjectStore> store_;
  MetricsRegistry registry_;
  ShmMetrics metrics_;
  std::unique_ptr<ShmService> service_;
};

// A descriptor of one of many kinds.
struct Gift {
  Fd fd;
  uint64_t bytes = 0;
  bool good = false;  // memory that a Put may come from
};
constexpr auto kGiftByte = std::byte{'x'};  // a gift is full of it

Gift MakeGift(FuzzInput* input) {
  const auto how = input->Take<uint8_t>();
  Gift gift;
  gift.bytes = (1 + how / 16 % 8) * kPageBytes * (how % 16 == 0 ? 16 : 1);
  if (how % 16 == 1) {
    gift.fd = Fd(::eventfd(0, EFD_CLOEXEC));
    return gift;
  }
  if (how % 16 == 2) {
    gift.fd = Fd(::open("/dev/null", O_RDWR | O_CLOEXEC));
    return gift;
  }
  gift.fd = Fd(::memfd_create("gift", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const auto length = static_cast<off_t>(gift.bytes);
  const bool holes = how % 16 == 3;
  const std::vector<std::byte> pages(gift.bytes, kGiftByte);
  EMS_CHECK(holes ? ::ftruncate(gift.fd.get(), length) == 0
                  : ::write(gift.fd.get(), pages.data(), pages.size()) == length);
  int seals = F_SEAL_SHRINK | fabric::kSealFutureWrite;
  if (how % 16 == 4) seals = F_SEAL_SHRINK;
  if (how % 16 == 5) seals = fabric::kSealFutureWrite;
  EMS_CHECK(::fcntl(gift.fd.get(), F_ADD_SEALS, seals) == 0);
  gift.good = how % 16 == 0 || how % 16 > 5;
  return gift;
}

// The client's end of a session. Threading: one thread.
class Peer final {
 public:
  Peer(World* world, NamespaceRef ns) : world_(world), socket_(world->Attach(ns)) {
    const std::optional<SessionMessage> welcome = Next();
    if (!welcome) return;
    EMS_CHECK(welcome->op == SessionOp::kWelcome);
    const bool ok = welcome->status == static_cast<uint32_t>(WireStatus::kOk);
    EMS_CHECK(fds_.size() == (ok ? 2u : 0u) && ok == (welcome->text[0] == '\0'));
    EMS_CHECK(ns == kNs || ns == kOther || !ok);
    if (!ok) {
      socket_.Close();
      return;
    }
    CheckReadOnly(fds_[0]);
    auto control = fabric::MappedMemory::Map(fds_[0], shm::kControlBytes);
    EMS_CHECK(control.ok());
    control_ = *std::move(control);
    auto page = fabric::SharedPage::Map(fds_[1], shm::kSessionBytes);
    EMS_CHECK(page.ok());
    page_ = *std::move(page);
    id_ = welcome->id;
    secret_ = welcome->secret;
    EMS_CHECK(secret_ != 0);
  }

  bool open() const { return socket_.valid(); }
  // Asks, and checks the answer.
  void Ask(FuzzInput* input) {
    SessionMessage question;
    const auto what = input->Take<uint8_t>();
    question.op = what < 0xf0 ? static_cast<SessionOp>(2 + what % 3)
                              : static_cast<SessionOp>(input->Take<uint32_t>());
    question.id = input->Take<uint8_t>();
    if (question.id >= 0xf0) question.id = input->Take<uint64_t>();
    // Most ask for a table that a shard is in.
    if (question.op == SessionOp::kTable && question.id < shm::kIndexShards) {
      const uint64_t at = offsetof(shm::ControlPage, shards) + question.id * sizeof(uint64_t);
      question.id = shm::TableOf(control_->LoadWord(at));
    }
    std::vector<Gift> gifts(what / 8 % 8 < 6 ? 0 : what / 8 % 8 - 5);
    if (question.op == SessionOp::kRegister && gifts.empty()) gifts.resize(1);
    for (Gift& gift : gifts) gift = MakeGift(input);
    question.bytes = gifts.empty() || what / 64 == 3 ? input->Take<uint64_t>() : gifts[0].bytes;
    std::vector<int> borrowed;
    borrowed.reserve(gifts.size());
    for (const Gift& gift : gifts) borrowed.push_back(gift.fd.get());
    if (!fabric::SendMessageTo(socket_.get(), wire::RawBytes(question), borrowed).ok()) return;
    // Behind bytes that are no message this is none, either.
    if (question.op == SessionOp::kSegmentDropped || babbled_) return;
    const std::optional<SessionMessage> answer = Next();
    if (!answer) return;  // it broke the protocol
    EMS_CHECK(answer->op == question.op && answer->id == question.id);
    const bool ok = answer->status == static_cast<uint32_t>(WireStatus::kOk);
    if (question.op != SessionOp::kRegister) {
      EMS_CHECK(question.op == SessionOp::kSegment || question.op == SessionOp::kTable);
      EMS_CHECK(fds_.size() == (ok ? 1u : 0u));
      if (ok) Keep(*answer);
      return;
    }
    EMS_CHECK(fds_.empty() && ok == (answer->text[0] == '\0'));
    if (!ok) return;
    EMS_CHECK(gifts.size() == 1 && gifts[0].good && question.bytes <= gifts[0].bytes);
    EMS_CHECK(answer->bytes == question.bytes && world_->registered_bytes() <= kRegisteredMax);
    registered_bytes_ = question.bytes;
  }
  // Bytes that are no message, or a part of one.
  void Babble(FuzzInput* input) {
    const std::string_view bytes = input->TakeText(input->TakeUpTo(2 * sizeof(SessionMessage)));
    (void)::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    babbled_ = babbled_ || !bytes.empty();
  }
  void Scribble(FuzzInput* input) {
    auto* const page = reinterpret_cast<SessionPage*>(page_->writable_address());
    const auto what = input->Take<uint8_t>();
    if (what % 4 == 0) page->hazard_end = what < 128 ? what : input->Take<uint32_t>();
    if (what % 4 == 1)
      (what < 128 ? page->touch_count : page->sample_count) = input->Take<uint64_t>();
    if (what % 4 == 2) {
      shm::Touch& touch = page->touches[input->TakeUpTo(shm::kTouchesMax - 1)];
      const Hash128 hash = KeyHash("steady");
      touch.hash_lo = what < 128 ? hash.lo : input->Take<uint64_t>();
      touch.hash_hi = what < 128 ? hash.hi : input->Take<uint64_t>();
      page->touch_count.fetch_add(1 + what);
    }
    if (what % 4 == 3) {
      const uint64_t slot = input->TakeUpTo(63);
      page->hazards[slot] = what < 224 ? Generation(what / 4 % 8) : input->Take<uint64_t>();
      page->hazard_end = 64;
    }
  }
  void Stage(FuzzInput* input) {
    if (babbled_) return;
    const auto what = input->Take<uint8_t>();
    wire::StagedValue value;
    value.session = what % 8 == 0 ? input->Take<uint64_t>() : id_;
    value.secret = what % 8 == 1 ? input->Take<uint64_t>() : secret_;
    value.offset = what % 8 == 2 ? input->Take<uint64_t>() : input->TakeUpTo(registered_bytes_);
    value.bytes = what % 8 == 3 ? input->Take<uint64_t>() : input->TakeUpTo(8192);
    value.progress_at = what % 8 < 6 ? wire::kAllThere : input->Take<uint64_t>();
    if (what % 8 == 6) value.progress_at %= 2 * kPageBytes;
    const auto staged = world_->service()->Staged(value);
    if (!staged.ok()) {
      EMS_CHECK(staged.status().code() == StatusCode::kInvalidArgument);
      return;
    }
    EMS_CHECK(value.session != id_ || (value.secret == secret_ && registered_bytes_ > 0));
    EMS_CHECK(staged->bytes.size() == value.bytes);
    if (value.session == id_) EMS_CHECK(value.offset + value.bytes <= registered_bytes_);
    for (const std::byte byte : staged->bytes) EMS_CHECK(byte == kGiftByte);
    if (staged->progress != nullptr)
      EMS_CHECK(wire::RawBytes(staged->progress->load())[0] == kGiftByte);
  }

 private:
  // The next answer; notices are passed over. Nothing: the session has ended.
  std::optional<SessionMessage> Next() {
    SessionMessage message;
    const Deadline deadline = Deadline::After(kPatience);
    while (true) {
      const auto outcome =
          receiver_.Receive(socket_.get(), std::as_writable_bytes(std::span(&message, 1)), &fds_);
      if (outcome == MessageReceiver::Outcome::kEnded) {
        socket_.Close();
        return std::nullopt;
      }
      const bool notice =
          message.op == SessionOp::kSegmentGone || message.op == SessionOp::kTableGone;
      if (outcome == MessageReceiver::Outcome::kMessage && notice) continue;
      if (outcome == MessageReceiver::Outcome::kMessage) return message;
      EMS_CHECK(!deadline.Passed(), "a question without an answer");
      pollfd wait{.fd = socket_.get(), .events = POLLIN, .revents = 0};
      (void)::poll(&wait, 1, 100);
    }
  }
  static void CheckReadOnly(const Fd& fd) {
    EMS_CHECK(::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0) ==
              MAP_FAILED);
    EMS_CHECK(::ftruncate(fd.get(), 0) != 0);
  }
  void Keep(const SessionMessage& answer) {
    CheckReadOnly(fds_[0]);
    struct stat info {};
    EMS_CHECK(::fstat(fds_[0].get(), &info) == 0);
    EMS_CHECK(static_cast<uint64_t>(info.st_size) == answer.bytes);
    if (answer.op != SessionOp::kTable) return;
    auto table = fabric::MappedMemory::Map(fds_[0], answer.bytes);
    EMS_CHECK(table.ok());
    table_ = *std::move(table);
  }
  // A word that stands in the index, if the table is known; else one that does not.
  uint64_t Generation(uint64_t number) const {
    if (table_ == nullptr) return number << 8;
    const uint64_t entries = table_->size_bytes() / sizeof(shm::IndexEntry);
    uint64_t word = 0;
    for (uint64_t i = 0; i < entries; ++i) {
      const uint64_t next = table_->LoadWord(i * sizeof(shm::IndexEntry));
      if (next == 0) continue;
      word = next;
      if (number-- == 0) break;
    }
    return word;
  }

  World* const world_;
  Fd socket_;
  MessageReceiver receiver_;
  std::vector<Fd> fds_;
  std::unique_ptr<fabric::SharedPage> page_;
  std::unique_ptr<fabric::MappedMemory> control_, table_;
  uint64_t id_ = 0;
  uint64_t secret_ = 0;
  uint64_t registered_bytes_ = 0;
  bool babbled_ = false;
};

NamespaceRef TakeNamespace(uint8_t what) {
  if (what % 16 == 15) return {NamespaceId(9), 1};
  return what % 4 == 3 ? kOther : kNs;
}

void Run(FuzzInput* input, World* world) {
  std::array<std::unique_ptr<Peer>, kPeersMax> peers;
  for (size_t step = 0; step < kStepsMax && !input->empty(); ++step) {
    const auto what = input->Take<uint8_t>();
    std::unique_ptr<Peer>& peer = peers[what / 64 % kPeersMax];
    if (peer == nullptr || !peer->open()) {
      peer = std::make_unique<Peer>(world, TakeNamespace(what));
      if (!peer->open()) peer.reset();
      continue;
    }
    const std::string key = {'k', static_cast<char>('0' + what / 16 % 4)};
    switch (what % 16) {
      case 0:
        peer.reset();
        break;
      case 1:
        peer->Babble(input);
        break;
      case 2:
      case 3:
        peer->Stage(input);
        break;
      case 4:
      case 5:
      case 6:
        peer->Scribble(input);
        break;
      case 7:
      case 8:
        world->Put(kNs, key, input->TakeUpTo(5000));
        break;
      case 9:
        world->Remove(kNs, key);
        break;
      case 10:
        world->Tidy();
        break;
      default:
        peer->Ask(input);
    }
  }
  peers = {};
  world->CheckQuiet();
}

}  // namespace
}  // namespace ems::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static ems::server::World world;
  ems::testing::FuzzInput input(data, size);
  ems::server::Run(&input, &world);
  return 0;
}
