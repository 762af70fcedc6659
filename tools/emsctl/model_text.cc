#include "tools/emsctl/model_text.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "tools/terminal.h"

namespace ems::emsctl {
namespace {

using Json = nlohmann::ordered_json;
using model::JobState;
using terminal::Align;
using terminal::Table;

double Seconds(Duration time) { return std::chrono::duration<double>(time).count(); }

std::string Percent(uint64_t part, uint64_t whole) {
  if (whole == 0) return "100.0 %";
  return fmt::format("{:.1f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string RateText(uint64_t bytes, Duration time) {
  const double seconds = Seconds(time);
  return seconds < 0.001 ? ""
                         : fmt::format("{:.2f} GB/s", static_cast<double>(bytes) / seconds / 1e9);
}

std::string StateText(const model::ModelInfo& info) {
  if (info.job.state == JobState::kRunning)
    return fmt::format("running, {}", Percent(info.job.bytes_done, info.bytes));
  return std::string(info.job.state == JobState::kNone ? "never" : JobStateName(info.job.state));
}

Json JobJson(const model::JobInfo& job) {
  Json json{{"number", job.number},
            {"state", JobStateName(job.state)},
            {"priority", job.priority},
            {"blocks_done", job.blocks_done},
            {"bytes_done", job.bytes_done},
            {"source_bytes", job.source_bytes},
            {"promoted_bytes", job.promoted_bytes},
            {"shared_bytes", job.shared_bytes},
            {"checked_bytes", job.checked_bytes},
            {"elapsed_seconds", Seconds(job.elapsed)}};
  if (job.state == JobState::kRunning) json["seconds_left"] = Seconds(job.time_left);
  if (!job.error.ok()) json["error"] = ToString(job.error);
  json["failures"] = Json::array();
  for (const model::JobFailure& one : job.failures)
    json["failures"].push_back({{"server", one.server}, {"error", ToString(one.error)}});
  if (job.failures_left_out > 0) json["failures_left_out"] = job.failures_left_out;
  return json;
}

}  // namespace

std::string TimeText(Duration time) {
  const double seconds = Seconds(time);
  if (seconds < 120) return fmt::format("{:.1f} s", seconds);
  if (seconds < 120 * 60) return fmt::format("{:.0f} min", seconds / 60);
  if (seconds < 48 * 3600) return fmt::format("{:.0f} h", seconds / 3600);
  return fmt::format("{:.0f} d", seconds / 86'400);
}

std::string ModelsText(const std::vector<model::ModelInfo>& models) {
  if (models.empty()) return "no models; `emsctl model add` adds one\n";
  Table table({{"model", Align::kLeft},
               {"version", Align::kLeft},
               {"size"},
               {"files"},
               {"blocks"},
               {"first read", Align::kLeft},
               {"prefetch", Align::kLeft},
               {"pinned", Align::kLeft},
               {"unused for"}});
  for (const model::ModelInfo& info : models) {
    table.AddRow({info.name.model, info.name.version, FormatBytes(info.bytes),
                  fmt::format("{}", info.files), fmt::format("{}", info.blocks),
                  std::string(FirstReadName(info.source.first_read)), StateText(info),
                  info.pinned ? "yes" : "no", TimeText(info.unused)});
  }
  return table.Render();
}

Json ModelJson(const model::ModelInfo& info) {
  return {{"id", info.id},
          {"model", info.name.model},
          {"version", info.name.version},
          {"namespace", info.name_space},
          {"source", info.source.url},
          {"credentials", info.source.credentials},
          {"bytes_per_s_max", info.source.bytes_per_s_max},
          {"verify", info.source.first_read != model::FirstRead::kOnce},
          {"first_read", FirstReadName(info.source.first_read)},
          {"bytes", info.bytes},
          {"files", info.files},
          {"blocks", info.blocks},
          {"blocks_known", info.blocks_known},
          {"pinned", info.pinned},
          {"age_seconds", Seconds(info.age)},
          {"unused_seconds", Seconds(info.unused)},
          {"job", JobJson(info.job)}};
}

std::string ModelText(const model::ModelInfo& info, const model::Manifest& manifest) {
  std::string text;
  const auto line = [&](std::string_view name, const std::string& value) {
    text += fmt::format("{:<12}{}\n", name, value);
  };
  line("model", info.name.Text());
  line("source", info.source.url);
  if (!info.source.credentials.empty()) line("credentials", info.source.credentials);
  line("namespace", info.name_space);
  line("size",
       fmt::format("{} in {} files, {} blocks of up to {}, {} read so far", FormatBytes(info.bytes),
                   info.files, info.blocks, FormatBytes(manifest.block_bytes), info.blocks_known));
  std::string first_read(FirstReadName(info.source.first_read));
  const size_t unprotected = UnprotectedFiles(manifest);
  if (unprotected > 0 && info.source.first_read == model::FirstRead::kOnce)
    first_read += fmt::format(", {} of {} files unprotected", unprotected, info.files);
  line("first read", first_read);
  line("pinned", info.pinned ? "yes" : "no");
  line("added", TimeText(info.age) + " ago");
  line("unused for", TimeText(info.unused));
  line("prefetch", StateText(info));
  if (info.job.state != JobState::kNone) line("", JobText(info));
  for (const model::JobFailure& one : info.job.failures)
    line("", fmt::format("server \"{}\": {}", one.server, ToString(one.error)));
  if (info.job.failures_left_out > 0)
    line("", fmt::format("and {} more servers", info.job.failures_left_out));
  if (!info.job.error.ok() && info.job.failures.empty()) line("", ToString(info.job.error));
  Table table(
      {{"file", Align::kLeft}, {"size"}, {"tag", Align::kLeft}, {"compared with", Align::kLeft}});
  for (const model::ManifestFile& file : manifest.files)
    table.AddRow({file.path, FormatBytes(file.bytes), Printable(file.tag), file.sum});
  return text + "\n" + table.Render();
}

Json ManifestJson(const model::Manifest& manifest) {
  Json files = Json::array();
  for (const model::ManifestFile& file : manifest.files)
    files.push_back(
        {{"path", file.path}, {"bytes", file.bytes}, {"tag", file.tag}, {"sum", file.sum}});
  return {{"block_bytes", manifest.block_bytes}, {"files", std::move(files)}};
}

std::string CheckText(const model::CheckResult& check) {
  Table table({{"where", Align::kLeft}, {"share"}, {"size"}, {"blocks"}});
  const auto row = [&](const char* where, uint64_t bytes, uint64_t blocks) {
    table.AddRow(
        {where, Percent(bytes, check.info.bytes), FormatBytes(bytes), fmt::format("{}", blocks)});
  };
  row("DRAM", check.dram_bytes, check.dram_blocks);
  row("SSD alone", check.ssd_bytes, check.ssd_blocks);
  row("absent", check.absent_bytes, check.absent_blocks);
  if (check.shared_blocks > 0)
    row("of other versions, too", check.shared_bytes, check.shared_blocks);
  if (check.unreachable_blocks > 0)
    row("no answer", check.unreachable_bytes, check.unreachable_blocks);
  std::string text = table.Render();
  if (check.unprotected_files > 0) {
    text += fmt::format("added with --no-verify: the first read of {} of {} files is unprotected\n",
                        check.unprotected_files, check.info.files);
  }
  return text;
}

Json CheckJson(const model::CheckResult& check) {
  return {{"model", check.info.name.model},
          {"version", check.info.name.version},
          {"bytes", check.info.bytes},
          {"blocks", check.info.blocks},
          {"dram_bytes", check.dram_bytes},
          {"dram_blocks", check.dram_blocks},
          {"ssd_bytes", check.ssd_bytes},
          {"ssd_blocks", check.ssd_blocks},
          {"absent_bytes", check.absent_bytes},
          {"absent_blocks", check.absent_blocks},
          {"shared_bytes", check.shared_bytes},
          {"shared_blocks", check.shared_blocks},
          {"unreachable_bytes", check.unreachable_bytes},
          {"unreachable_blocks", check.unreachable_blocks},
          {"unprotected_files", check.unprotected_files}};
}

std::string JobText(const model::ModelInfo& info) {
  const model::JobInfo& job = info.job;
  std::string text = fmt::format("{} of {} in {}", FormatBytes(job.bytes_done),
                                 FormatBytes(info.bytes), TimeText(job.elapsed));
  const std::string rate = RateText(job.bytes_done, job.elapsed);
  if (!rate.empty()) text += ", " + rate;
  text += fmt::format("; {} from the source", FormatBytes(job.source_bytes));
  if (job.promoted_bytes > 0)
    text += fmt::format(", {} from SSDs", FormatBytes(job.promoted_bytes));
  if (job.shared_bytes > 0)
    text += fmt::format(", {} there already, of other versions", FormatBytes(job.shared_bytes));
  return text;
}

std::string LoadText(const model::LoadStats& stats) {
  std::string text = fmt::format("{} in {}", FormatBytes(stats.bytes), TimeText(stats.elapsed));
  const std::string rate = RateText(stats.bytes, stats.elapsed);
  if (!rate.empty()) text += ", " + rate;
  text += fmt::format("; {} from DRAM, {} from SSDs, {} from the source; waited {}",
                      FormatBytes(stats.dram_bytes), FormatBytes(stats.ssd_bytes),
                      FormatBytes(stats.source_bytes), TimeText(stats.waiting));
  if (!stats.detour.ok()) text += fmt::format("\nfrom the source, as {}", ToString(stats.detour));
  return text;
}

Json LoadJson(const model::LoadStats& stats) {
  Json json{{"bytes", stats.bytes},
            {"dram_bytes", stats.dram_bytes},
            {"ssd_bytes", stats.ssd_bytes},
            {"source_bytes", stats.source_bytes},
            {"blocks", stats.blocks},
            {"misses", stats.misses},
            {"jobs", stats.jobs},
            {"seconds", Seconds(stats.elapsed)},
            {"waiting_seconds", Seconds(stats.waiting)}};
  if (!stats.detour.ok()) json["why_source"] = ToString(stats.detour);
  return json;
}

}  // namespace ems::emsctl
