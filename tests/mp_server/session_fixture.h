#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/checksum.h"
#include "mp_server/data_service.h"
#include "tests/support/eventually.h"
#include "tests/support/small_tier.h"

namespace ems::server {

// A data service over DRAM and SSD, or over DRAM alone, and one session of it. This server owns all
// slots and has a lease.
class SessionFixture : public SmallTierTest {
 protected:
  static constexpr SlotId kSlot{11};

  explicit SessionFixture(std::string_view name, decltype(ssd::TierOptions::wrap_io) wrap_io = {},
                          uint64_t index_memory_bytes = 0)
      : SmallTierTest(name, std::move(wrap_io), index_memory_bytes),
        dram_alone_(dram_.get(), nullptr) {
    SlotTable slots;
    for (uint16_t s = 0; s < kSlotCount; ++s) slots.set_owner(SlotId(s), NodeId(1));
    NodeInfo node;
    node.id = NodeId(1);
    ownership_.SetSelf(node.id);
    ownership_.SetActive(1000);  // nobody else has the slots
    store_->SetOwnedSlots(
        {{1, 1}, ownership_.Install(**DhtView::Make({1, 1}, {node}, slots, false))});
    ownership_.RenewLease(clock_.Now() + std::chrono::seconds(100));
  }
  ~SessionFixture() override { session_.reset(); }
  void Serve(TieredStore* store) {
    session_.reset();
    service_ = std::make_unique<DataService>(store, &ownership_, &metrics_, 55, 8 * kMiB,
                                             [] { return std::string(); });
    session_ = service_->NewSession();
    session_->SetWaker([] {});
  }
  static wire::FrameHeader Header(wire::Op op, uint16_t flags) {
    wire::FrameHeader header;
    header.op = op;
    header.flags = flags;
    header.namespace_id = kNs.id.value();
    header.namespace_generation = kNs.generation;
    header.view = ViewVersion(1, 1).packed();
    header.slot = kSlot.value();
    return header;
  }
  // As the transport does it: asks again while it is to wait.
  wire::WireStatus Ask(const wire::FrameHeader& header, std::string_view key,
                       ConstBytes body = {}) {
    session_->Sent();  // the answer before
    fabric::Outcome outcome;
    EXPECT_TRUE(ems::testing::Eventually([&] {
      answer_.Clear();
      outcome = session_->Handle(header, key, body, &answer_);
      return !outcome.again && outcome.wait == Duration::zero();
    }));
    return outcome.status;
  }
  wire::WireStatus Ask(wire::Op op, std::string_view key, uint16_t flags = 0) {
    return Ask(Header(op, flags), key);
  }
  wire::WireStatus AskRange(std::string_view key, wire::RangeBody range, uint16_t flags) {
    return Ask(Header(wire::Op::kGetRange, flags), key, wire::RawBytes(range));
  }
  // The body of a request of several keys; `tail`: what follows them.
  static std::string BodyOf(const std::vector<std::string>& keys, std::string_view tail = {}) {
    std::string body;
    for (const std::string& key : keys) {
      wire::ItemHead head;
      head.slot = kSlot.value();
      head.key_bytes = static_cast<uint16_t>(key.size());
      body += AsText(wire::RawBytes(head));
    }
    for (const std::string& key : keys) body += key;
    return body.append(tail);
  }
  static wire::FrameHeader MultiHeader(wire::Op op, const std::vector<std::string>& keys,
                                       uint16_t flags = wire::kFlagCheck) {
    wire::FrameHeader header = Header(op, flags);
    header.item_count = static_cast<uint16_t>(keys.size());
    return header;
  }
  std::vector<wire::ItemResult> Results() const {
    std::vector<wire::ItemResult> results(answer_.body.size() / sizeof(wire::ItemResult));
    std::memcpy(results.data(), answer_.body.data(), answer_.body.size());
    return results;
  }
  std::vector<wire::ItemResult> AskMany(wire::Op op, const std::vector<std::string>& keys,
                                        std::string_view tail = {}) {
    EXPECT_EQ(Ask(MultiHeader(op, keys), {}, AsBytes(BodyOf(keys, tail))), wire::WireStatus::kOk);
    return Results();
  }
  wire::WireStatus Put(fabric::Session* session, std::string_view key, std::string_view value,
                       uint16_t flags = 0) {
    const wire::FrameHeader header = Header(wire::Op::kPut, flags);
    fabric::PutTarget target;
    const fabric::Outcome outcome = session->BeginPut({&header, key, kSlot, value.size()}, &target);
    if (outcome.status != wire::WireStatus::kOk) return outcome.status;
    PieceHasher hasher;
    hasher.Start(target.piece_sums);
    hasher.Update(AsBytes(value));
    if (!target.discard) std::memcpy(target.value.data(), value.data(), value.size());
    wire::WireStatus status = session->EndPut(hasher.Finish(), Checksum(AsBytes(value)));
    EXPECT_TRUE(ems::testing::Eventually(
        [&] { return session->AwaitPuts(std::span(&status, 1)).wait == Duration::zero(); }));
    return status;
  }
  wire::WireStatus Put(std::string_view key, std::string_view value, uint16_t flags = 0) {
    return Put(session_.get(), key, value, flags);
  }
  std::string Payload() const {
    std::string all;
    for (const ConstBytes part : answer_.payload) all += AsText(part);
    return all;
  }

  ManualClock clock_;
  MetricsRegistry registry_;
  ServerMetrics metrics_{&registry_};
  Ownership ownership_{&clock_};
  TieredStore dram_alone_;
  std::unique_ptr<DataService> service_;
  std::unique_ptr<fabric::Session> session_;
  fabric::Answer answer_;
};

}  // namespace ems::server
