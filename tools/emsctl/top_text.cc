#include "tools/emsctl/top_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "common/bytes.h"
#include "tools/terminal.h"

namespace ems::emsctl {
namespace {

using Json = nlohmann::ordered_json;
using terminal::Align;
using terminal::Table;

using Rate = std::optional<double>;  // a second; nothing: not known

double Seconds(const Sample& before, const Sample& now) {
  return std::chrono::duration<double>(now.at - before.at).count();
}

Rate Grown(uint64_t before, uint64_t now, double seconds) {
  if (seconds <= 0 || now < before) return std::nullopt;
  return static_cast<double>(now - before) / seconds;
}

struct ServerRates {
  Rate ops{}, read_bytes{}, stored_bytes{}, evictions{};
  Rate hit_share{};  // of the Gets; nothing without any
};

template <typename Counts>
Rate HitShare(const Counts& before, const Counts& now, double seconds) {
  const Rate gets = Grown(before.gets, now.gets, seconds);
  const Rate hits = Grown(before.hits, now.hits, seconds);
  return gets && hits && *gets > 0 ? Rate(*hits / *gets) : std::nullopt;
}

ServerRates RatesOf(const ServerCounts& before, const ServerCounts& now, double seconds) {
  if (before.boot_id != now.boot_id) return {};
  const auto ops = [](const ServerCounts& c) { return c.gets + c.puts; };
  return {.ops = Grown(ops(before), ops(now), seconds),
          .read_bytes = Grown(before.read_bytes, now.read_bytes, seconds),
          .stored_bytes = Grown(before.stored_bytes, now.stored_bytes, seconds),
          .evictions = Grown(before.evicted_objects, now.evicted_objects, seconds),
          .hit_share = HitShare(before, now, seconds)};
}

struct NamespaceRates {
  Rate gets{}, hit_share{}, evictions{}, evicted_bytes{};
};

NamespaceRates RatesOf(const NamespaceCounts& before, const NamespaceCounts& now, double seconds) {
  return {.gets = Grown(before.gets, now.gets, seconds),
          .hit_share = HitShare(before, now, seconds),
          .evictions = Grown(before.evicted_objects, now.evicted_objects, seconds),
          .evicted_bytes = Grown(before.evicted_bytes, now.evicted_bytes, seconds)};
}

template <typename Counts>
const Counts* Find(const std::map<std::string, Counts>& all, const std::string& name) {
  const auto found = all.find(name);
  return found == all.end() ? nullptr : &found->second;
}

ServerRates RatesOf(const Sample& before, const Sample& now, const std::string& name) {
  const ServerCounts* const then = Find(before.servers, name);
  return then == nullptr ? ServerRates()
                         : RatesOf(*then, now.servers.at(name), Seconds(before, now));
}

// A server that is silent in one sample alone would show as growth: then nothing is known.
NamespaceRates NamespaceRatesOf(const Sample& before, const Sample& now, const std::string& name) {
  const NamespaceCounts* const then = Find(before.namespaces, name);
  const bool same =
      std::equal(before.servers.begin(), before.servers.end(), now.servers.begin(),
                 now.servers.end(), [](const auto& one, const auto& other) {
                   return one.first == other.first && one.second.boot_id == other.second.boot_id;
                 });
  if (then == nullptr || !same) return {};
  return RatesOf(*then, now.namespaces.at(name), Seconds(before, now));
}

std::string CountText(Rate rate) { return rate ? fmt::format("{:.0f}", *rate) : "-"; }
std::string BytesText(Rate rate) { return rate ? fmt::format("{:.3f}", *rate / 1e9) : "-"; }
std::string ShareText(Rate share) { return share ? fmt::format("{:.1f} %", 100 * *share) : "-"; }

std::string Used(uint64_t part, uint64_t whole) {
  return whole == 0 ? "-"
                    : fmt::format("{:.0f} %",
                                  100 * static_cast<double>(part) / static_cast<double>(whole));
}

void Set(Json* json, const char* key, Rate rate) {
  (*json)[key] = nullptr;
  if (rate) (*json)[key] = *rate;
}

}  // namespace

Sample SampleOf(std::span<const ServerStats> servers, TimePoint at) {
  Sample sample{.at = at};
  for (const ServerStats& one : servers) {
    ServerCounts counts;
    if (one.json.ok() && ReadCounts(*one.json, &counts, &sample.namespaces)) {
      sample.servers[one.name] = counts;
    } else {
      sample.silent[one.name] =
          one.json.ok() ? "its statistics are not JSON" : ToString(one.json.status());
    }
  }
  return sample;
}

std::string TopText(const Sample& before, const Sample& now) {
  Table servers({{"server", Align::kLeft},
                 {"ops/s"},
                 {"hits"},
                 {"read GB/s"},
                 {"put GB/s"},
                 {"evicted/s"},
                 {"DRAM"},
                 {"used"},
                 {"objects"}});
  for (const auto& [name, counts] : now.servers) {
    const ServerRates rates = RatesOf(before, now, name);
    servers.AddRow(
        {name, CountText(rates.ops), ShareText(rates.hit_share), BytesText(rates.read_bytes),
         BytesText(rates.stored_bytes), CountText(rates.evictions), FormatBytes(counts.value_bytes),
         Used(counts.value_bytes, counts.pool_bytes), fmt::format("{}", counts.objects)});
  }
  Table namespaces({{"namespace", Align::kLeft},
                    {"objects"},
                    {"DRAM"},
                    {"gets/s"},
                    {"hits"},
                    {"evicted/s"},
                    {"evicted GB/s"}});
  for (const auto& [name, counts] : now.namespaces) {
    const NamespaceRates rates = NamespaceRatesOf(before, now, name);
    namespaces.AddRow({name, fmt::format("{}", counts.objects), FormatBytes(counts.value_bytes),
                       CountText(rates.gets), ShareText(rates.hit_share),
                       CountText(rates.evictions), BytesText(rates.evicted_bytes)});
  }
  std::string text = servers.Render() + "\n" + namespaces.Render();
  for (const auto& [name, why] : now.silent) text += fmt::format("\n! server {}: {}\n", name, why);
  return text;
}

Json TopJson(const Sample& before, const Sample& now) {
  Json json;
  json["seconds"] = Seconds(before, now);
  json["servers"] = Json::array();
  for (const auto& [name, counts] : now.servers) {
    const ServerRates rates = RatesOf(before, now, name);
    Json one = {{"name", name}};
    Set(&one, "ops_per_s", rates.ops);
    Set(&one, "hit_share", rates.hit_share);
    Set(&one, "read_bytes_per_s", rates.read_bytes);
    Set(&one, "stored_bytes_per_s", rates.stored_bytes);
    Set(&one, "evicted_objects_per_s", rates.evictions);
    one["dram_used_bytes"] = counts.value_bytes;
    one["dram_total_bytes"] = counts.pool_bytes;
    one["objects"] = counts.objects;
    json["servers"].push_back(std::move(one));
  }
  json["namespaces"] = Json::array();
  for (const auto& [name, counts] : now.namespaces) {
    const NamespaceRates rates = NamespaceRatesOf(before, now, name);
    Json one = {
        {"name", name}, {"objects", counts.objects}, {"dram_used_bytes", counts.value_bytes}};
    Set(&one, "gets_per_s", rates.gets);
    Set(&one, "hit_share", rates.hit_share);
    Set(&one, "evicted_objects_per_s", rates.evictions);
    Set(&one, "evicted_bytes_per_s", rates.evicted_bytes);
    json["namespaces"].push_back(std::move(one));
  }
  json["silent"] = now.silent;
  return json;
}

std::string Fitted(std::string_view text, size_t columns, size_t rows) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  const bool cut = rows > 0 && lines.size() > rows;
  const size_t shown = cut ? rows - 1 : lines.size();
  std::string fitted;
  for (size_t i = 0; i < shown; ++i) {
    std::string_view line = lines[i];
    size_t end = 0, places = 0;  // a code point is a place, and is not cut
    while (end < line.size()) {
      const bool starts = (static_cast<unsigned char>(line[end]) & 0xc0) != 0x80;
      if (starts && columns > 0 && places == columns) break;
      places += starts ? 1 : 0;
      ++end;
    }
    fitted += line.substr(0, end);
    fitted += '\n';
  }
  if (cut) fitted += fmt::format("… {} lines more\n", lines.size() - shown);
  return fitted;
}

}  // namespace ems::emsctl
