#include "pdc/rpc/internal/stream_table.h"

#include <utility>
#include <vector>

#include "common/check.h"

namespace ems::pdc::rpc {

Status StreamTable::Add(uint64_t id, std::shared_ptr<OpenStream> stream) {
  auto state = state_.Lock();
  if (!state->closed.ok()) return state->closed;
  if (state->streams.contains(id))
    return Error(StatusCode::kAlreadyExists, "task {} is under way", id);
  if (state->alive >= kStreamsMax)
    return Error(StatusCode::kResourceExhausted, "{} tasks are under way", state->alive);
  state->streams.emplace(id, std::move(stream));
  ++state->alive;
  return OkStatus();
}

void StreamTable::Forget(uint64_t id) {
  std::shared_ptr<OpenStream> stream;  // goes after the lock
  auto state = state_.Lock();
  const auto found = state->streams.find(id);
  if (found != state->streams.end()) {
    stream = std::move(found->second);
    state->streams.erase(found);
  }
  state.Unlock();
}

void StreamTable::Gone() {
  {
    auto state = state_.Lock();
    EMS_CHECK(state->alive > 0, "one more stream has gone than there were");
    --state->alive;
  }
  changed_.notify_all();
}

void StreamTable::Interrupt(uint64_t id, const Status& why) {
  std::shared_ptr<OpenStream> stream;
  {
    auto state = state_.Lock();
    const auto found = state->streams.find(id);
    if (found != state->streams.end()) stream = found->second;
  }
  if (stream) stream->Interrupt(why);
}

void StreamTable::Open() {
  auto state = state_.Lock();
  state->closed = OkStatus();
}

void StreamTable::Close(const Status& why) {
  std::vector<std::shared_ptr<OpenStream>> streams;
  {
    auto state = state_.Lock();
    state->closed = why;
    for (const auto& [id, stream] : state->streams) streams.push_back(stream);
  }
  for (const auto& stream : streams) stream->Interrupt(why);
}

void StreamTable::WaitUntilEmpty() {
  auto state = state_.Lock();
  state.Wait(changed_, [](const State& now) { return now.alive == 0; });
}

}  // namespace ems::pdc::rpc
