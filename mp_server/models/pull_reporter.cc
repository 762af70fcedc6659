#include "mp_server/models/pull_reporter.h"

#include <memory>
#include <vector>

#include "proto/model.pb.h"

namespace ems::server {
namespace {

constexpr Duration kIdle = std::chrono::seconds(60);
constexpr Duration kCallPatience = std::chrono::seconds(2);
constexpr Duration kReportEvery = std::chrono::seconds(1);
constexpr Duration kReportSoon = std::chrono::milliseconds(20);  // gathers what comes together

}  // namespace

void PullReporter::Run() {
  TimePoint all_at{};
  while (true) {
    {
      auto locked = table_.state.Lock();
      locked.WaitFor(table_.reports, locked->pulls.empty() ? kIdle : kReportEvery,
                     [](const PullTable::State& s) { return s.stopping || s.report_due; });
      if (locked->stopping) return;
    }
    if (table_.stop.WaitFor(kReportSoon)) return;
    const TimePoint now = Clock::System().Now();
    // A running job is told of again and again: a controller that was restarted has forgotten.
    const bool all = now - all_at >= kReportEvery;
    if (all) all_at = now;
    std::vector<uint32_t> due;
    {
      auto locked = table_.state.Lock();
      locked->report_due = false;
      for (const auto& [id, pull] : locked->pulls) {
        if (pull->has_news() || (all && pull->running())) due.push_back(id);
      }
    }
    for (const uint32_t id : due) Report(id);
  }
}

Status PullReporter::Tell(v1::ReportPullRequest* report) const {
  report->set_node_id(table_.options.ownership->self().value());
  report->set_boot_id(table_.options.boot_id);
  v1::ReportPullReply reply;
  return table_.models.ReportPull(*report, &reply, Deadline::After(kCallPatience));
}

void PullReporter::Report(uint32_t id) {
  bool more = true;
  while (more && !table_.stop.IsSet()) {
    v1::ReportPullRequest report;
    std::shared_ptr<const model::Manifest> manifest;
    const bool there = table_.With(id, [&](ModelPull& pull) {
      pull.FillReport(&report);
      report.set_sequence(table_.reports_told.fetch_add(1, std::memory_order_relaxed) + 1);
      manifest = pull.manifest();
      more = pull.has_news();
    });
    if (!there) return;
    report.set_read_bytes(table_.sources.BytesRead(manifest->source));
    const Status told = Tell(&report);
    if (told.ok()) continue;
    // Other bytes than another server has read: those count. It would be refused again.
    if (told.code() == StatusCode::kFailedPrecondition && digests_->Learn(id)) continue;
    table_.With(id, [&](ModelPull& pull) { pull.ReportFailed(report); });
    return;  // it goes again within kReportEvery
  }
}

void PullReporter::ReportLast(ModelPull* pull) {
  for (bool told = true; told && pull->has_news() && !table_.stop.IsSet();) {
    v1::ReportPullRequest report;
    pull->FillReport(&report);
    report.set_sequence(table_.reports_told.fetch_add(1, std::memory_order_relaxed) + 1);
    told = Tell(&report).ok();
  }
}

}  // namespace ems::server
