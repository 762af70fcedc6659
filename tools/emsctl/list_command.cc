// emsctl ls: the keys of a namespace.
#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "common/bytes.h"
#include "common/command_line.h"
#include "mp_sdk/client.h"
#include "mp_sdk/key_scan.h"
#include "tools/emsctl/context.h"
#include "tools/emsctl/output.h"
#include "tools/terminal.h"

namespace ems::emsctl {
namespace {

using Json = nlohmann::ordered_json;
using terminal::Align;
using terminal::Table;

constexpr uint64_t kLimitMax = 1'000'000;

struct Flags {
  std::string name_space;
  std::string prefix;
  uint64_t limit = 1000;
  bool all_columns = false;
};

// By key, in their order: each once.
using Keys = std::map<std::string, KeyInfo>;

struct Listing {
  Keys keys;
  bool more = false;  // than --limit
  std::vector<KeyScan::Failure> failures{};
  bool view_changed = false;
};

Listing List(KeyScan scan, uint64_t limit) {
  Listing listing;
  terminal::ProgressBar bar({.label = "listing", .unit = "keys"});
  while (!scan.done() && !listing.more) {
    for (KeyInfo& one : scan.Next()) {
      std::string key = one.key;
      listing.keys.try_emplace(std::move(key), std::move(one));
    }
    bar.Update(listing.keys.size());
    listing.more = listing.keys.size() > limit;
  }
  while (listing.keys.size() > limit) listing.keys.erase(std::prev(listing.keys.end()));
  listing.failures = scan.failures();
  listing.view_changed = scan.view_changed();
  return listing;
}

std::string_view NameOf(Tier tier) {
  if (tier == Tier::kDram) return "dram";
  return tier == Tier::kSsd ? "ssd" : "unknown";
}

double SecondsOf(Duration time) { return std::chrono::duration<double>(time).count(); }

std::string AgeText(const std::optional<Duration>& time) {
  return time ? fmt::format("{:.1f} s", SecondsOf(*time)) : "-";
}

std::string TextOf(const Keys& keys, bool all_columns) {
  if (!all_columns) {
    std::string text;
    for (const auto& [key, info] : keys) text += Printable(key, 512) + "\n";
    return text;
  }
  Table table({{"key", Align::kLeft}, {"bytes"}, {"tier", Align::kLeft}, {"age"}, {"idle"}});
  for (const auto& [key, info] : keys) {
    table.AddRow({Printable(key, 512), fmt::format("{}", info.bytes),
                  std::string(NameOf(info.tier)), AgeText(info.age), AgeText(info.idle)});
  }
  return table.Render();
}

Json JsonOf(const Listing& listing) {
  Json keys = Json::array();
  for (const auto& [key, info] : listing.keys) {
    Json one = {{"key", key}, {"bytes", info.bytes}, {"tier", NameOf(info.tier)}};
    if (info.age) one["age_seconds"] = SecondsOf(*info.age);
    if (info.idle) one["idle_seconds"] = SecondsOf(*info.idle);
    keys.push_back(std::move(one));
  }
  const bool complete = !listing.more && listing.failures.empty() && !listing.view_changed;
  return {{"keys", std::move(keys)}, {"complete", complete}};
}

// What is missing of the listing and why, on standard error; the exit code.
int SayWhatIsMissing(const Context& context, const Listing& listing, uint64_t limit) {
  int exit_code = kExitOk;
  for (const KeyScan::Failure& failure : listing.failures) {
    const std::string what = fmt::format("ls: keys of {} are missing", failure.server);
    const bool old = failure.status.code() == StatusCode::kUnimplemented;
    exit_code = std::max(
        exit_code,
        Complain(context, what,
                 old ? Error(StatusCode::kUnimplemented,
                             "{} runs an older version, which cannot list keys", failure.server)
                     : failure.status));
  }
  if (listing.more)
    Remark(context, "note", fmt::format("there are more than {} keys: see --limit", limit));
  if (listing.view_changed)
    Remark(context, "note", "servers came or went meanwhile: keys that moved may be missing");
  return exit_code;
}

int Run(const Context& context, const Flags& flags) {
  ClientOptions options;
  options.controller = context.controller;
  options.name_space = flags.name_space;
  options.transport = TransportChoice::kTcp;
  options.start_timeout = context.timeout();
  const auto client = Client::Connect(options);
  if (client.status().code() == StatusCode::kNotFound) {
    return Complain(context, Error(StatusCode::kNotFound,
                                   "there is no namespace {}; `emsctl namespace list` shows them",
                                   flags.name_space));
  }
  if (!client.ok()) return Unreachable(context, client.status());
  const Status joined = context.joined->Join((*client)->views().cluster());
  if (!joined.ok()) return Unreachable(context, joined);
  Result<KeyScan> scan =
      KeyScan::Begin(client->get(), {.prefix = flags.prefix, .timeout = context.timeout()});
  if (!scan.ok()) return Complain(context, scan.status());
  const Listing listing = List(*std::move(scan), flags.limit);
  const int shown = Show(context, JsonOf(listing), TextOf(listing.keys, flags.all_columns));
  return std::max(shown, SayWhatIsMissing(context, listing, flags.limit));
}

}  // namespace

void AddListCommand(Command* program, const Context* context) {
  const auto flags = std::make_shared<Flags>();
  Command* list = program->AddCommand("ls", "Keys of a namespace that begin with a prefix");
  list->AddOption("namespace", &flags->name_space, "", {.required = true});
  list->AddOption("prefix", &flags->prefix, "Of the keys that are wanted; all without one",
                  {.show_default = false});
  list->AddOption("--limit", &flags->limit, "Most keys that are listed",
                  {.check = InRange{1.0, static_cast<double>(kLimitMax)}});
  list->AddFlag("--long", &flags->all_columns,
                "Also length, tier, and how long ago the value came to its server's DRAM and was "
                "used there");
  list->SetRun([=] { return Run(*context, *flags); });
}

}  // namespace ems::emsctl
