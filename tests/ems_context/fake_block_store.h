#pragma once
// A store in memory for tests of context caching: remembers what was asked of it and in which
// order, and fails on demand.
#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/guarded.h"
#include "common/thread_pool.h"
#include "ems_context/block_store.h"

namespace ems::context::test {

// One call as the store saw it.
struct StoreCall {
  std::string operation;
  std::vector<std::string> keys;  // in the order of the items
  Duration timeout{0};
  bool touch = false;
};

// Threading: thread-safe.
class FakeBlockStore final : public BlockStore {
 public:
  FakeBlockStore() : threads_("fake-store", 2, 64) {}

  std::vector<Result<bool>> MultiExists(std::span<const KeyItem> items,
                                        const GetOptions& options) override {
    auto state = state_.Lock();
    StoreCall call{"exists", {}, options.timeout, options.touch};
    std::vector<Result<bool>> results;
    for (const KeyItem& item : items) {
      const std::string key(item.key);
      call.keys.push_back(key);
      const Status failure = FailureOf(*state, key);
      if (failure.ok())
        results.emplace_back(state->blocks.contains(key));
      else
        results.emplace_back(failure);
    }
    state->calls.push_back(std::move(call));
    return results;
  }

  std::vector<Result<uint64_t>> MultiGet(std::span<const GetItem> items,
                                         const GetOptions& options) override {
    EnterGate("get");
    auto state = state_.Lock();
    StoreCall call{"get", {}, options.timeout, options.touch};
    std::vector<Result<uint64_t>> results;
    for (const GetItem& item : items) {
      call.keys.emplace_back(item.key);
      results.push_back(GetOne(*state, item));
    }
    state->calls.push_back(std::move(call));
    return results;
  }

  std::vector<Status> MultiGetRange(std::span<const RangeItem> items,
                                    const GetOptions& options) override {
    EnterGate("range");
    auto state = state_.Lock();
    StoreCall call{"range", {}, options.timeout, options.touch};
    std::vector<Status> results;
    for (const RangeItem& item : items) {
      call.keys.emplace_back(item.key);
      results.push_back(GetPart(*state, item));
    }
    state->calls.push_back(std::move(call));
    return results;
  }

  std::vector<Status> MultiPut(std::span<const PutItem> items, const PutOptions& options) override {
    EnterGate("put");
    auto state = state_.Lock();
    StoreCall call{"put", {}, options.timeout, true};
    std::vector<Status> results;
    for (const PutItem& item : items) {
      call.keys.emplace_back(item.key);
      results.push_back(PutOne(*state, item));
    }
    state->calls.push_back(std::move(call));
    return results;
  }

  bool Submit(std::function<void()>&& work) override {
    if (IsFull()) return false;
    return threads_.TrySubmit(std::move(work));
  }

  void FailKey(const std::string& key, StatusCode code) {
    auto state = state_.Lock();
    state->failures[key] = code;
  }
  // Only Put of this key fails.
  void FailPut(const std::string& key, StatusCode code) {
    auto state = state_.Lock();
    state->put_failures[key] = code;
  }
  // Called with the operation before each get, range and put; it may wait. Set before any call.
  void SetGate(std::function<void(const std::string&)> gate) { gate_ = std::move(gate); }
  std::string Get(const std::string& key) {
    auto state = state_.Lock();
    const auto block = state->blocks.find(key);
    return block == state->blocks.end() ? std::string() : block->second;
  }
  void RefuseSubmissions() {
    auto state = state_.Lock();
    state->full = true;
  }
  void Set(const std::string& key, const std::string& value) {
    auto state = state_.Lock();
    state->blocks[key] = value;
  }
  void Erase(const std::string& key) {
    auto state = state_.Lock();
    state->blocks.erase(key);
  }
  std::vector<StoreCall> TakeCalls() {
    auto state = state_.Lock();
    return std::exchange(state->calls, {});
  }

 private:
  void EnterGate(const std::string& operation) {
    if (gate_) gate_(operation);
  }
  bool IsFull() {
    auto state = state_.Lock();
    return state->full;
  }

  struct State {
    std::map<std::string, std::string> blocks;
    std::map<std::string, StatusCode> failures, put_failures;
    std::vector<StoreCall> calls;
    bool full = false;
  };

  static Status FailureOf(const State& state, const std::string& key) {
    const auto failure = state.failures.find(key);
    return failure == state.failures.end() ? OkStatus() : Error(failure->second, "told to fail");
  }

  static Result<uint64_t> GetOne(const State& state, const GetItem& item) {
    const std::string key(item.key);
    EMS_RETURN_IF_ERROR(FailureOf(state, key));
    const auto block = state.blocks.find(key);
    if (block == state.blocks.end()) return Miss();
    if (block->second.size() > item.into.size_bytes())
      return Error(StatusCode::kOutOfRange, "too small");
    size_t at = 0;
    for (const MutableBytes part : item.into.parts()) {
      const size_t bytes = std::min(part.size(), block->second.size() - at);
      std::memcpy(part.data(), block->second.data() + at, bytes);
      at += bytes;
    }
    return block->second.size();
  }

  static Status GetPart(const State& state, const RangeItem& item) {
    const std::string key(item.key);
    EMS_RETURN_IF_ERROR(FailureOf(state, key));
    const auto block = state.blocks.find(key);
    if (block == state.blocks.end()) return Miss();
    const uint64_t bytes = block->second.size(), wanted = item.into.size_bytes();
    if (item.whole_bytes != 0 && item.whole_bytes != bytes)
      return Error(StatusCode::kOutOfRange, "another length");
    if (item.offset > bytes || wanted > bytes - item.offset)
      return Error(StatusCode::kOutOfRange, "beyond the end");
    size_t at = item.offset;
    for (const MutableBytes part : item.into.parts()) {
      std::memcpy(part.data(), block->second.data() + at, part.size());
      at += part.size();
    }
    return OkStatus();
  }

  static Status PutOne(State& state, const PutItem& item) {
    const std::string key(item.key);
    EMS_RETURN_IF_ERROR(FailureOf(state, key));
    const auto failure = state.put_failures.find(key);
    if (failure != state.put_failures.end()) return Error(failure->second, "told to fail");
    std::string value;
    for (const ConstBytes part : item.value.parts()) value.append(AsText(part));
    const auto [block, fresh] = state.blocks.emplace(key, value);
    if (fresh || block->second == value) return OkStatus();
    return Error(StatusCode::kAlreadyExists, "other content");
  }

  std::function<void(const std::string&)> gate_;
  Guarded<State> state_;
  ThreadPool threads_;  // last: its threads use the rest
};

}  // namespace ems::context::test
