#pragma once
// Puts and Removes of a few names in random order, under writes and syncs that are held back.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/mp_server/ssd/log_writer_rig.h"

namespace ems::testing {

// All that was asked of one key, and who has been told.
struct Step {
  std::optional<uint64_t> put_id;  // none: a Remove
  bool durable = false;
  Answer answer;
  bool told() const {
    return answer.ticket == nullptr || answer.now() == ssd::Ticket::State::kDone;
  }
  bool failed() const {
    return answer.ticket != nullptr && answer.now() == ssd::Ticket::State::kFailed;
  }
};
using Steps = std::vector<Step>;

// The last step that a caller has been told of: nothing from before it may be seen again.
inline size_t LastTold(const Steps& steps) {
  size_t last = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].told()) last = i;
  }
  return last;
}

// Whether a restart may show this, when step `told` was the last that a caller had been told of.
inline bool MayShow(const Steps& steps, size_t told, std::optional<uint64_t> shown) {
  for (size_t i = told; i < steps.size(); ++i) {
    const Step& step = steps[i];
    if (shown && step.put_id == shown) return true;
    const bool keeps = step.put_id && step.durable && !step.failed() && (i > told || step.told());
    if (!shown && !keeps) return true;
  }
  return !shown && steps.empty();
}

struct StormKind {
  std::string_view name;
  uint32_t regions_max;  // few: old records are dropped, or move
  bool faults;
  // Everything that was put last is there in the end.
  bool exact() const { return regions_max > 3 && !faults; }
};

// Asks for this and that, lets writes land in any order, and looks at what a restart would show.
// Threading: one thread.
class Storm final {
 public:
  Storm(const StormKind& kind, uint64_t seed)
      : kind_(kind),
        random_(seed),
        rig_({.regions_max = kind.regions_max,
              .region_bytes = kMiB / 2,
              .overwrite_quiet = std::chrono::milliseconds(400),
              .clock = &clock_}) {}

  void Run() {
    rig_.io->Hold();
    for (next_id_ = 100; next_id_ < 150; ++next_id_) {
      Ask();
      if (random_() % 2 == 0) WaitAMoment();
      LookAtRows();
    }
    rig_.io->HoldNoMore();
    rig_.files.OpenGate();
    rig_.files.faults.Mend();
    ASSERT_TRUE(Eventually([&] { return AllIsQuiet(); }));
    for (const auto& [key, steps] : steps_) ExpectTheEnd(key, steps);
    rig_.Restart();
    for (const auto& [key, steps] : steps_) ExpectTheEnd(key, steps);
  }

 private:
  // For the writer to look at its queue, if it does while writes are held back.
  void WaitAMoment() {
    const Answer passed = rig_.MakeDurable("none");
    (void)Eventually([&] { return passed.now() != ssd::Ticket::State::kWaiting; },
                     std::chrono::milliseconds(3));
  }
  std::string AnyKey() { return std::string(1, static_cast<char>('a' + random_() % 3)); }
  void Ask() {
    const std::string key = AnyKey();
    const size_t held = rig_.io->held();
    switch (random_() % 14) {
      case 0:
      case 1:
      case 2: {
        Step step;
        step.answer = rig_.Remove(key);
        return steps_[key].push_back(std::move(step));
      }
      case 3:
      case 4:
        if (held > 0) rig_.io->LetGo(random_() % held);
        return;
      case 5:
        if (held > 0 && kind_.faults) rig_.io->Fail(random_() % held);
        return;
      case 6:
        if (kind_.faults && random_() % 4 == 0)
          rig_.files.faults.Fail(FaultyFiles::kSync, StatusCode::kUnavailable, 1);
        clock_.Advance(std::chrono::milliseconds(random_() % 600));
        return;
      case 7:
        (void)rig_.index->Find(NameOf(key), true);
        return;
      case 8:
        if (gate_shut_) {
          rig_.files.OpenGate();
        } else {
          rig_.files.Shut();  // the writer stops at the next durable object
        }
        gate_shut_ = !gate_shut_;
        return;
      default: {
        Step step;
        step.put_id = next_id_;
        step.durable = random_() % 2 == 0;
        const uint64_t bytes =
            random_() % 2 == 0 ? 8 + random_() % 5000 : 65530 + random_() % 60000;
        step.answer = rig_.Put(key, next_id_, bytes, step.durable);
        return steps_[key].push_back(std::move(step));
      }
    }
  }
  void LookAtRows() {
    for (const auto& [key, steps] : steps_) {
      const size_t told = LastTold(steps);
      const std::optional<uint64_t> shown = rig_.InRows(key);
      const bool vanished = !shown && !kind_.exact();
      EXPECT_TRUE(vanished || MayShow(steps, told, shown))
          << key << " shows " << shown.value_or(0) << " after " << Text(steps);
    }
  }
  bool AllIsQuiet() {
    clock_.Advance(std::chrono::milliseconds(100));
    rig_.PassQueue();
    bool pending = false;
    bool waiting = false;
    for (const auto& [key, steps] : steps_) {
      pending = pending || rig_.index->Find(NameOf(key), false).pending;
      for (const Step& step : steps) waiting = waiting || (!step.told() && !step.failed());
    }
    return !pending && !waiting && rig_.writer->state() == ssd::TierState::kOk &&
           rig_.writer->stats().dirty_bytes == 0 && rig_.index->Owed().empty();
  }
  void ExpectTheEnd(const std::string& key, const Steps& steps) {
    SCOPED_TRACE(key + ": " + Text(steps));
    const std::optional<uint64_t> shown = rig_.InMemory(key);
    EXPECT_EQ(rig_.Stored(key), shown.has_value()) << "what is stored reads back";
    EXPECT_EQ(rig_.InRows(key), shown) << "memory and a restart agree";
    if (kind_.exact()) {
      EXPECT_EQ(shown, steps.back().put_id);
    } else {
      EXPECT_TRUE(!shown || MayShow(steps, LastTold(steps), shown));
    }
  }
  // "100D. 101? -." : put ids (durable ones marked) and removes, with what came of them.
  static std::string Text(const Steps& steps) {
    std::string text;
    for (const Step& step : steps) {
      text += step.put_id ? std::to_string(*step.put_id) : "-";
      if (step.durable) text += 'D';
      text += step.told() ? ". " : step.failed() ? "! " : "? ";
    }
    return text;
  }

  const StormKind kind_;
  std::mt19937_64 random_;
  ManualClock clock_;
  Rig rig_;
  std::map<std::string, Steps> steps_;
  bool gate_shut_ = false;
  uint64_t next_id_ = 0;
};

// Puts and Removes from three threads at once, until all have been told.
inline void AskFromManyThreads(Rig* rig, std::span<const std::string> keys, uint64_t seed) {
  std::vector<Thread> threads;
  for (uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back("asks-" + std::to_string(t), [rig, keys, t, seed] {
      std::mt19937_64 random(seed + t);
      std::vector<Answer> answers;
      for (uint64_t i = 0; i < 60; ++i) {
        const std::string& key = keys[random() % keys.size()];
        answers.push_back(random() % 3 == 0 ? rig->Remove(key)
                                            : rig->Put(key, 1000 * t + i, 100, random() % 2 == 0));
        if (random() % 8 == 0 && answers.back().ticket != nullptr) (void)answers.back().Wait();
      }
      for (const Answer& answer : answers) {
        if (answer.ticket != nullptr) (void)answer.Wait();
      }
    });
  }
}

}  // namespace ems::testing
