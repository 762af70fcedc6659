#include "mp_sdk/client_stats.h"

#include <fmt/format.h>

#include <iterator>
#include <string_view>

namespace ems {

std::string PrometheusText(const ClientStats& stats) {
  std::string text;
  const auto counter = [&text](std::string_view name, std::string_view help, uint64_t value) {
    fmt::format_to(std::back_inserter(text),
                   "# HELP ems_client_{0}_total {1}\n# TYPE ems_client_{0}_total counter\n"
                   "ems_client_{0}_total {2}\n",
                   name, help, value);
  };
  counter("gets", "Keys of Get calls", stats.gets);
  counter("hits", "Those of them that were found", stats.hits);
  counter("puts", "Keys of Put calls", stats.puts);
  counter("read_bytes", "Value bytes read, views included", stats.bytes_read);
  counter("written_bytes", "Value bytes written", stats.bytes_written);
  counter("retries", "Requests that were sent again", stats.retries);
  counter("wrong_owner", "Answers that a key is another server's", stats.wrong_owner);
  counter("breaker_opened", "Times that a server was taken for gone", stats.breaker_opened);
  counter("copies_asked", "Requests to holders of copies of what a server had that is gone",
          stats.copies_asked);
  counter("hot_hits", "Reads of hot keys that other servers answered from copies", stats.hot_hits);
  counter("hot_misses", "Reads of hot keys that copies were asked for in vain", stats.hot_misses);
  counter("hedges", "Reads that another server was asked for, too, as the first was slow",
          stats.hedges);
  counter("hedges_won", "Those of them that the other one answered", stats.hedges_won);
  counter("checksum_mismatches", "Values that did not match their checksum",
          stats.checksum_mismatches);
  counter("one_sided", "Keys settled without a server's help", stats.one_sided);
  counter("not_attached", "Keys asked over the socket: memory that is not mapped here",
          stats.not_attached);
  counter("not_current", "Keys asked over the socket: an index of another view", stats.not_current);
  counter("not_conclusive", "Keys asked over the socket: changed, or a miss that proves nothing",
          stats.not_conclusive);
  std::vector<LatencySeries> series;
  series.reserve(stats.calls.size());
  for (const CallLatency& call : stats.calls)
    series.push_back({fmt::format("op=\"{}\",path=\"{}\"", call.op, call.path), call.latencies});
  AppendHistogram("ems_client_call_seconds",
                  "What calls took; of those that asked no server one in 32 is timed", series,
                  &text);
  return text;
}

}  // namespace ems
