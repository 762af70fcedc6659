#pragma once
// One end of a ring without its rules: lays fields or acks as a test wants them, also such as no
// sender or receiver would.
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "fabric/emulated/ring_doorbell.h"
#include "fabric/emulated/ring_layout.h"
#include "fabric/emulated/ring_pair.h"
#include "fabric/net/fd_message.h"
#include "fabric/shm/shm_segment.h"
#include "fabric/shm/shm_transport.h"

namespace ems::testing {

// A field as a sender would store it.
struct RawChunk {
  uint32_t entry = 0;
  uint64_t event_id = 0;
  uint32_t message = 1;
  uint32_t chunk_id = 0;  // with flags
  uint32_t bytes = 0;
  uint32_t checksum = 0;
  uint64_t tail = 0;
};

class RawRingSender final {
 public:
  // Takes the offer that lies in `socket`.
  explicit RawRingSender(fabric::Fd socket) : socket_(std::move(socket)) {
    fabric::MessageReceiver receiver;
    EXPECT_EQ(receiver.Receive(socket_.get(), std::as_writable_bytes(std::span(&hello_, 1)), &fds_),
              fabric::MessageReceiver::Outcome::kMessage);
    memory_ = *fabric::SharedPage::Map(fds_[0], hello_.memory_bytes);
  }
  const fabric::RingHello& hello() const { return hello_; }
  fabric::RingLayout layout() const { return {hello_.entries, hello_.entry_bytes}; }
  std::byte* base() const { return memory_->writable_address(); }
  void Fill(uint32_t entry, char c) {
    std::fill_n(layout().Entry(base(), entry), hello_.entry_bytes, static_cast<std::byte>(c));
  }
  void Store(const RawChunk& chunk) {
    fabric::RingField* field = layout().Field(base(), chunk.entry);
    field->event_id = chunk.event_id;
    field->chunk_id = chunk.chunk_id;
    field->chunk_bytes = chunk.bytes;
    field->message = chunk.message;
    field->checksum = chunk.checksum;
    field->tail = chunk.tail;
    fabric::RingPage* page = fabric::RingLayout::Page(base());
    fabric::internal::RingDoorbell::Ring({&page->data_bell, &page->receiver_asleep, fds_[1].get()});
  }
  uint64_t Ack(uint32_t entry) const { return *layout().Ack(base(), entry); }
  void HangUp() { socket_.Close(); }

 private:
  fabric::Fd socket_;
  fabric::RingHello hello_;
  std::vector<fabric::Fd> fds_;
  std::unique_ptr<fabric::SharedPage> memory_;
};

class RawRingReceiver final {
 public:
  RawRingReceiver(fabric::Fd socket, uint32_t entries, uint64_t entry_bytes)
      : layout_(entries, entry_bytes), socket_(std::move(socket)) {
    memory_ = *fabric::ShmSegment::CreatePages(layout_.memory_bytes(), true);
    for (int i = 0; i < 3; ++i) fds_.emplace_back(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  }
  fabric::RingHello Hello() const {
    return {.entries = layout_.entries(),
            .checksums = 0,
            .entry_bytes = layout_.entry_bytes(),
            .memory_bytes = layout_.memory_bytes()};
  }
  void Offer(const fabric::RingHello& hello) {
    Offer(hello, std::array{memory_.fd(), fds_[0].get(), fds_[1].get(), fds_[2].get()});
  }
  void Offer(const fabric::RingHello& hello, std::span<const int> fds) {
    EXPECT_TRUE(
        fabric::SendMessageTo(socket_.get(), std::as_bytes(std::span(&hello, 1)), fds).ok());
  }
  int memory_fd() const { return memory_.fd(); }
  int event_fd() const { return fds_[0].get(); }
  std::byte* base() const { return memory_.bytes().data(); }
  const fabric::RingLayout& layout() const { return layout_; }
  fabric::RingPage* page() const { return fabric::RingLayout::Page(base()); }
  uint64_t Tail(uint32_t entry) const { return layout_.Field(base(), entry)->tail; }
  uint32_t entries_filled() const {
    uint32_t filled = 0;
    for (uint32_t i = 0; i < layout_.entries(); ++i) filled += Tail(i) != 0 ? 1 : 0;
    return filled;
  }
  // Waits until the sender has stored a field there.
  void AwaitTail(uint32_t entry) const {
    const Deadline deadline = Deadline::After(std::chrono::seconds(20));
    while (Tail(entry) == 0 && !deadline.Passed()) std::this_thread::yield();
    ASSERT_NE(Tail(entry), 0U);
  }
  void StoreAck(uint32_t entry, uint64_t word) {
    *layout_.Ack(base(), entry) = word;
    fabric::internal::RingDoorbell::Ring(
        {&page()->ack_bell, &page()->sender_asleep, fds_[1].get()});
  }
  void HangUp() { socket_.Close(); }

 private:
  const fabric::RingLayout layout_;
  fabric::Fd socket_;
  fabric::ShmSegment memory_;
  std::vector<fabric::Fd> fds_;
};

}  // namespace ems::testing
