// What must hold: HBM is given out without overlap and comes back whole, copies of a stream happen
// in order and before its events, and nothing is read or written outside of HBM.
#include "fabric/emulated/npu_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "fabric/emulated/emulated_link.h"

namespace ems::fabric {
namespace {

using std::chrono::seconds;

std::unique_ptr<NpuDevice> Device(uint64_t bytes) {
  auto device = NpuDevice::Create({.hbm_bytes = bytes});
  EXPECT_TRUE(device.ok()) << device.status();
  return *std::move(device);
}

std::string Text(uint64_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

TEST(NpuDeviceTest, WhatGoesInComesOut) {
  const auto device = Device(8 * kMiB);
  NpuStream stream(device.get());
  const std::string in = Text(3 * kMiB + 7, 1);
  const HbmAddress at = *device->Allocate(in.size());
  ASSERT_TRUE(stream.CopyIn(at, AsBytes(in)).ok());
  std::string out(in.size(), '\0');
  ASSERT_TRUE(stream.CopyOut(std::as_writable_bytes(std::span(out)), at).ok());
  ASSERT_TRUE(stream.Synchronize(seconds(20)));
  EXPECT_EQ(out, in);
}

TEST(NpuDeviceTest, AStreamIsInOrder) {
  EmulatedLink link(200 * kMiB);  // slow enough for copies to be queued
  const EmulatedPath path({&link}, Duration::zero());
  const auto device = Device(kMiB);
  NpuStream stream(device.get(), &path);
  std::vector<std::string> texts;
  for (uint64_t i = 0; i < 20; ++i) texts.push_back(Text(100'000, i));
  for (const std::string& text : texts) ASSERT_TRUE(stream.CopyIn({4096}, AsBytes(text)).ok());
  std::string out(100'000, '\0');
  ASSERT_TRUE(stream.CopyOut(std::as_writable_bytes(std::span(out)), {4096}).ok());
  const NpuEventPtr event = stream.Record();
  ASSERT_TRUE(event->Wait(seconds(20)));
  EXPECT_TRUE(event->done());
  EXPECT_EQ(out, texts.back());
}

TEST(NpuDeviceTest, NothingOutsideOfHbmIsTouched) {
  const auto device = Device(kMiB);
  NpuStream stream(device.get());
  std::string text(1024, 'x');
  EXPECT_EQ(stream.CopyIn({kMiB - 1023}, AsBytes(text)).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(stream.CopyIn({~uint64_t{0}}, AsBytes(text)).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(stream.CopyOut(std::as_writable_bytes(std::span(text)), {kMiB}).code(),
            StatusCode::kOutOfRange);
  EXPECT_TRUE(stream.CopyIn({kMiB - 1024}, AsBytes(text)).ok());
  ASSERT_TRUE(stream.Synchronize(seconds(20)));  // before the text goes
  EXPECT_EQ(NpuDevice::Create({}).status().code(), StatusCode::kInvalidArgument);
}

TEST(NpuDeviceTest, PiecesDoNotOverlapAndComeBackWhole) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const auto device = Device(kMiB);
  std::map<uint64_t, uint64_t> taken;  // offset → bytes
  for (int i = 0; i < 2000; ++i) {
    if (random() % 2 == 0 && !taken.empty()) {
      auto it = taken.begin();
      std::advance(it, random() % taken.size());
      device->Free({it->first});
      taken.erase(it);
      continue;
    }
    const uint64_t bytes = 1 + random() % 100'000;
    const auto at = device->Allocate(bytes);
    if (!at.ok()) {
      EXPECT_EQ(at.status().code(), StatusCode::kResourceExhausted);
      continue;
    }
    EXPECT_EQ(at->offset % 512, 0U);
    EXPECT_LE(at->offset + bytes, kMiB);
    const auto next = taken.lower_bound(at->offset);
    if (next != taken.end()) {
      ASSERT_LE(at->offset + bytes, next->first);
    }
    if (next != taken.begin()) {
      ASSERT_LE(std::prev(next)->first + std::prev(next)->second, at->offset);
    }
    taken[at->offset] = bytes;
  }
  for (const auto& [offset, bytes] : taken) device->Free({offset});
  EXPECT_EQ(device->free_bytes(), kMiB);
  EXPECT_TRUE(device->Allocate(kMiB).ok()) << "in one piece again";
}

TEST(NpuDeviceTest, CopiesGoToOtherDevices) {
  const auto device = Device(kMiB), second = Device(kMiB);
  NpuStream stream(device.get());
  const std::string in = Text(5000, 6);
  ASSERT_TRUE(stream.CopyIn({512}, AsBytes(in)).ok());
  ASSERT_TRUE(stream.CopyAcross(second.get(), {1024}, {512}, in.size()).ok());
  ASSERT_TRUE(stream.Synchronize(seconds(20)));
  EXPECT_EQ(AsText(*second->KernelView({1024}, in.size())), in);
  EXPECT_EQ(stream.CopyAcross(second.get(), {kMiB}, {0}, 1).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(second->KernelView({kMiB}, 1).status().code(), StatusCode::kOutOfRange);
}

TEST(NpuDeviceTest, APathIsKeptToByBandwidthAndLatency) {
  EmulatedLink link(20'000'000);
  const EmulatedPath path({&link}, std::chrono::milliseconds(30));
  const auto device = Device(4 * kMiB);
  NpuStream stream(device.get());
  const std::string in = Text(500'000, 8);
  const TimePoint begin = Clock::System().Now();
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(stream.CopyIn({0}, AsBytes(in), &path).ok());
  ASSERT_TRUE(stream.Synchronize(seconds(20)));
  EXPECT_GE(Clock::System().Now() - begin, std::chrono::milliseconds(130));
  EXPECT_EQ(link.bytes_carried(), 2'000'000U);
  const TimePoint again = Clock::System().Now();
  ASSERT_TRUE(stream.CopyIn({0}, AsBytes(in)).ok());  // its stream has none: not paced
  ASSERT_TRUE(stream.Synchronize(seconds(20)));
  EXPECT_EQ(link.bytes_carried(), 2'000'000U);
  EXPECT_GE(Clock::System().Now(), again);
}

TEST(NpuDeviceTest, StreamsShareALink) {
  EmulatedLink link(20'000'000);
  const EmulatedPath path({&link}, Duration::zero());
  const auto device = Device(4 * kMiB);
  const std::string in = Text(500'000, 9);
  const TimePoint begin = Clock::System().Now();
  {
    NpuStream first(device.get(), &path), second(device.get(), &path);
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(first.CopyIn({0}, AsBytes(in)).ok());
      ASSERT_TRUE(second.CopyIn({kMiB}, AsBytes(in)).ok());
    }
  }
  EXPECT_GE(Clock::System().Now() - begin, std::chrono::milliseconds(100));
  EXPECT_EQ(link.bytes_carried(), 2'000'000U);
}

}  // namespace
}  // namespace ems::fabric
