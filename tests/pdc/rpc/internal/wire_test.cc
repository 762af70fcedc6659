// What must hold: what is sent is what is read; what no peer of ours sends is refused.
#include "pdc/rpc/internal/wire.h"

#include <gtest/gtest.h>

#include "tests/support/scripted_prefill.h"

namespace ems::pdc::rpc {
namespace {

InstanceInfo Instance() {
  InstanceInfo info = testing::ScriptedInstance("x");
  info.incarnation = 77;
  return info;
}

TEST(WireTest, AnInstanceComesBack) {
  for (const KvStorage storage : {KvStorage::kBf16, KvStorage::kF32}) {
    InstanceInfo info = Instance();
    info.storage = storage;
    v1::Instance proto;
    ToProto(info, &proto);
    const auto read = InstanceOf(proto);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->name, info.name);
    EXPECT_EQ(read->model, info.model);
    EXPECT_EQ(read->fingerprint, info.fingerprint);
    EXPECT_EQ(read->block_tokens, info.block_tokens);
    EXPECT_EQ(read->storage, storage);
    EXPECT_EQ(read->vocab, info.vocab);
    EXPECT_EQ(read->positions_max, info.positions_max);
    EXPECT_EQ(read->context_tokens, info.context_tokens);
    EXPECT_EQ(read->incarnation, 77U);
    EXPECT_EQ(read->ring_socket_path, info.ring_socket_path);
  }
}

TEST(WireTest, AnInstanceThatMakesNoSenseIsRefused) {
  v1::Instance proto;
  ToProto(Instance(), &proto);
  proto.set_storage(v1::KV_STORAGE_UNKNOWN);
  EXPECT_EQ(InstanceOf(proto).status().code(), StatusCode::kInvalidArgument);
  ToProto(Instance(), &proto);
  proto.set_vocab(0);
  EXPECT_EQ(InstanceOf(proto).status().code(), StatusCode::kInvalidArgument);
}

TEST(WireTest, StatusesComeBackAndForeignOnesArePrintable) {
  for (const Status& status : {OkStatus(), Error(StatusCode::kDataLoss, "why"),
                               Error(StatusCode::kUnauthenticated, "who")}) {
    v1::Failure proto;
    ToProto(status, &proto);
    EXPECT_EQ(StatusOf(proto), status);
  }
  v1::Failure proto;
  proto.set_code(17);
  proto.set_message("a\nb");
  EXPECT_EQ(StatusOf(proto), Error(StatusCode::kInternal, "status 17: a\\x0ab"));
  ToProto(Error(StatusCode::kInternal, std::string(100'000, 'x')), &proto);
  EXPECT_LT(proto.message().size(), 2000U);
}

v1::RunRequest SoundRun() {
  PrefillTask task;
  task.id = 3;
  task.prompt = {1, 263};
  v1::RunRequest proto;
  ToProto(task, 9, &proto);
  return proto;
}

TEST(WireTest, TasksThatNoOneCouldComputeAreRefused) {
  EXPECT_TRUE(TaskOf(SoundRun(), Instance()).ok());
  EXPECT_EQ(SoundRun().session(), 9U);
  const auto refusal = [](auto change) {
    v1::RunRequest proto = SoundRun();
    change(&proto);
    return TaskOf(proto, Instance()).status().code();
  };
  constexpr StatusCode kBad = StatusCode::kInvalidArgument;
  EXPECT_EQ(refusal([](v1::RunRequest* run) { run->clear_prompt(); }), kBad);
  EXPECT_EQ(refusal([](v1::RunRequest* run) { run->add_prompt(264); }), kBad);
  EXPECT_EQ(refusal([](v1::RunRequest* run) { run->mutable_prompt()->Resize(1001, 0); }), kBad);
  EXPECT_EQ(refusal([](v1::RunRequest* run) { run->set_id(uint64_t{1} << 48); }), kBad);
  EXPECT_EQ(refusal([](v1::RunRequest* run) { run->clear_sampler(); }), kBad);  // top_p 0
  EXPECT_EQ(refusal([](v1::RunRequest* run) { run->set_cache_salt(std::string(5000, 'x')); }),
            kBad);
  DecodeTask task;
  task.prompt = {1};
  task.tokens_max = 0;
  v1::GenerateRequest generate;
  ToProto(task, &generate);
  EXPECT_EQ(TaskOf(generate, Instance()).status().code(), kBad);
}

TEST(WireTest, TimeIsRelativeAndBounded) {
  v1::RunRequest proto = SoundRun();
  EXPECT_LE(proto.time_us(), 60'000'000U);
  EXPECT_GT(proto.time_us(), 30'000'000U);
  proto.set_time_us(~uint64_t{0});
  const auto task = TaskOf(proto, Instance());
  ASSERT_TRUE(task.ok());
  EXPECT_LE(task->deadline.Remaining(), kTaskTimeMax);
  proto.set_time_us(0);
  EXPECT_TRUE(TaskOf(proto, Instance())->deadline.Passed());
}

TEST(WireTest, OutcomesThatMakeNoSenseAreRefused) {
  v1::RunEvent::Done proto;
  ToProto(PrefillOutcome{.first = 5, .prompt_tokens = 10, .cached_tokens = 10}, &proto);
  ASSERT_TRUE(OutcomeOf(proto, 10, 264).ok());
  EXPECT_FALSE(OutcomeOf(proto, 10, 264)->draft.has_value());
  EXPECT_EQ(OutcomeOf(proto, 11, 264).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(OutcomeOf(proto, 10, 5).status().code(), StatusCode::kDataLoss);
  proto.set_draft(264);
  EXPECT_EQ(OutcomeOf(proto, 10, 264).status().code(), StatusCode::kDataLoss);
  proto.set_draft(263);
  proto.set_cached_tokens(11);
  EXPECT_EQ(OutcomeOf(proto, 10, 264).status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace ems::pdc::rpc
