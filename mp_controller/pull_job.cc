#include "mp_controller/pull_job.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "proto/model.pb.h"

namespace ems::controller {

bool PullJob::running() const { return state == v1::PULL_RUNNING; }

void PullJob::Take(const v1::ReportPullRequest& report) {
  parts[report.boot_id()] = {.view = ViewVersion(report.term(), report.epoch()).packed(),
                             .finished = report.finished(),
                             .blocks_done = report.blocks_done(),
                             .bytes_done = report.bytes_done(),
                             .source_bytes = report.source_bytes(),
                             .promoted_bytes = report.promoted_bytes(),
                             .shared_bytes = report.shared_bytes(),
                             .read_bytes = report.read_bytes()};
}

bool PullJob::FinishedBy(const DhtView* view) const {
  if (view == nullptr || view->nodes().empty() || view->frozen()) return false;
  return std::ranges::all_of(view->nodes(), [&](const NodeInfo& node) {
    const auto part = parts.find(node.boot_id);
    return part != parts.end() && part->second.finished &&
           part->second.view == view->version().packed();
  });
}

void PullJob::Save(v1::PullJob* out) const {
  out->set_number(number);
  out->set_state(static_cast<v1::PullState>(state));
  out->set_priority(priority);
  if (why.ok()) return;
  out->set_error_code(static_cast<uint32_t>(why.code()));
  out->set_error(std::string(Message(why)));
}

void PullJob::Restore(const v1::PullJob& saved) {
  number = saved.number();
  state = saved.state();
  priority = saved.priority();
  if (saved.error_code() != 0)
    why = Status(static_cast<StatusCode>(saved.error_code()), saved.error());
}

void PullJob::Fill(const DhtView* view, TimePoint now, uint64_t blocks_max, uint64_t bytes_max,
                   v1::PullJob* out) const {
  Save(out);
  uint64_t blocks = 0, bytes = 0, source = 0, promoted = 0, shared = 0, read = 0;
  for (const auto& [boot, part] : parts) {
    const uint64_t boot_id = boot;  // clang 14 captures no bindings
    source += part.source_bytes;
    promoted += part.promoted_bytes;
    shared += part.shared_bytes;
    read += part.read_bytes;
    // What a server that is gone had done is to be done again.
    const auto is_there = [&](const NodeInfo& node) { return node.boot_id == boot_id; };
    if (view != nullptr && running() && std::ranges::none_of(view->nodes(), is_there)) continue;
    blocks += part.blocks_done;
    bytes += part.bytes_done;
  }
  out->set_blocks_done(std::min(blocks, blocks_max));
  out->set_bytes_done(std::min(bytes, bytes_max));
  out->set_source_bytes(source);
  out->set_promoted_bytes(promoted);
  out->set_shared_bytes(shared);
  out->set_read_bytes(read);
  const Duration took = std::max((running() ? now : ended) - began, Duration(0));
  out->set_elapsed_ms(
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(took).count()));
}

}  // namespace ems::controller
