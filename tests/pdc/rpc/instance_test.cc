// What must hold: instances whose KV does not fit are told apart, and foreign figures are bounded.
#include "pdc/rpc/instance.h"

#include <gtest/gtest.h>

#include "tests/support/scripted_prefill.h"

namespace ems::pdc {
namespace {

InstanceInfo Sound() {
  InstanceInfo info = testing::ScriptedInstance("x");
  info.incarnation = 1;
  return info;
}

TEST(InstanceTest, IncarnationsDifferAndAreNotNull) {
  const uint64_t one = NewIncarnation(), other = NewIncarnation();
  EXPECT_NE(one, 0U);
  EXPECT_NE(other, 0U);
  EXPECT_NE(one, other);
}

TEST(InstanceTest, EachFigureIsBounded) {
  EXPECT_EQ(CheckInstance(Sound()), OkStatus());
  const auto refusal = [](auto change) {
    InstanceInfo info = Sound();
    change(&info);
    return CheckInstance(info).code();
  };
  constexpr StatusCode kBad = StatusCode::kInvalidArgument;
  EXPECT_EQ(refusal([](InstanceInfo* info) { info->name.clear(); }), kBad);
  EXPECT_EQ(refusal([](InstanceInfo* info) { info->name.resize(300, 'x'); }), kBad);
  EXPECT_EQ(refusal([](InstanceInfo* info) { info->model.resize(300, 'x'); }), kBad);
  EXPECT_EQ(refusal([](InstanceInfo* info) { info->fingerprint.clear(); }), kBad);
  EXPECT_EQ(refusal([](InstanceInfo* info) { info->block_tokens = 0; }), kBad);
  EXPECT_EQ(refusal([](InstanceInfo* info) { info->block_tokens = 4097; }), kBad);
  EXPECT_EQ(refusal([](InstanceInfo* info) { info->vocab = 0; }), kBad);
  EXPECT_EQ(refusal([](InstanceInfo* info) { info->vocab = kVocabMax + 1; }), kBad);
  EXPECT_EQ(refusal([](InstanceInfo* info) { info->positions_max = 0; }), kBad);
  EXPECT_EQ(refusal([](InstanceInfo* info) { info->positions_max = kPositionsMax + 1; }), kBad);
  EXPECT_EQ(refusal([](InstanceInfo* info) { info->context_tokens = 0; }), kBad);
  EXPECT_EQ(refusal([](InstanceInfo* info) { ++(info->context_tokens = info->positions_max); }),
            kBad);
  EXPECT_EQ(refusal([](InstanceInfo* info) { info->incarnation = 0; }), kBad);
  EXPECT_EQ(refusal([](InstanceInfo* info) { info->ring_socket_path = "relative"; }), kBad);
  EXPECT_EQ(refusal([](InstanceInfo* info) { info->ring_socket_path.clear(); }), StatusCode::kOk);
}

TEST(InstanceTest, WhatDoesNotFitIsNamed) {
  InstanceInfo expected{.fingerprint = "f1", .block_tokens = 16, .storage = KvStorage::kBf16};
  EXPECT_EQ(CheckFits(Sound(), expected), OkStatus());
  expected.context_tokens = 900;
  EXPECT_EQ(CheckFits(Sound(), expected), OkStatus());
  expected.context_tokens = 901;
  EXPECT_EQ(CheckFits(Sound(), expected),
            Error(StatusCode::kFailedPrecondition,
                  "has KV for 900 tokens, requests here may have 901: it needs the same kv.bytes"));
  expected.block_tokens = 32;
  EXPECT_EQ(CheckFits(Sound(), expected),
            Error(StatusCode::kFailedPrecondition, "has KV blocks of 16 tokens, expected are 32"));
  expected.storage = KvStorage::kF32;
  EXPECT_EQ(CheckFits(Sound(), expected),
            Error(StatusCode::kFailedPrecondition, "stores KV as bf16, expected is f32"));
  expected.fingerprint = "f2";
  EXPECT_EQ(CheckFits(Sound(), expected),
            Error(StatusCode::kFailedPrecondition,
                  "serves another model: scripted with fingerprint f1, expected is f2"));
}

}  // namespace
}  // namespace ems::pdc
