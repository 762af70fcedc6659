// emsctl put, get, exists, rm, stat: single objects, from and to files.
#include <chrono>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/command_line.h"
#include "mp_sdk/client.h"
#include "proto/data_plane.h"
#include "tools/emsctl/context.h"
#include "tools/emsctl/file_io.h"
#include "tools/emsctl/output.h"
#include "tools/emsctl/policy_words.h"
#include "tools/terminal.h"

namespace ems::emsctl {
namespace {

using Json = nlohmann::ordered_json;
using terminal::Align;
using terminal::Table;
constexpr auto kBarInterval = std::chrono::milliseconds(100);

struct Flags {
  std::string key;
  std::vector<std::string> keys;
  std::string file = "-";
  std::string durability;
  bool overwrite = false;
};

// Errors: kNotFound  no such namespace    others  as the controller or the cluster says
Result<std::unique_ptr<Client>> Connect(const Context& context) {
  ClientOptions options;
  options.controller = context.controller;
  options.name_space = context.name_space;
  options.start_timeout = context.timeout();
  EMS_ASSIGN_OR_RETURN(std::unique_ptr<Client> client, Client::Connect(options));
  // Nothing has been asked of a server yet, and a client stays with its cluster.
  EMS_RETURN_IF_ERROR(context.joined->Join(client->views().cluster()));
  return client;
}

int NotConnected(const Context& context, const Status& status) {
  if (status.code() != StatusCode::kNotFound) return Unreachable(context, status);
  return Complain(context, Error(StatusCode::kNotFound,
                                 "there is no namespace {}; `emsctl namespace list` shows them",
                                 context.name_space));
}

// Waits for a call that has a deadline of its own, with a clock on the terminal when it takes long.
template <typename T>
T Await(std::future<T> call, const std::string& label) {
  terminal::ProgressBar bar({.label = label});
  while (call.wait_for(kBarInterval) != std::future_status::ready) bar.Update(0);
  return call.get();
}

std::string Quoted(std::string_view key) { return fmt::format("\"{}\"", Printable(key)); }

int NotFound(const Context& context, std::string_view key) {
  return Complain(context, Error(StatusCode::kNotFound, "{} not found", Quoted(key)));
}

int RunPut(const Context& context, const Flags& flags) {
  PutOptions options{.overwrite = flags.overwrite, .timeout = context.timeout()};
  if (!flags.durability.empty()) {
    const Result<Durability> durability = ParseDurability(flags.durability);
    if (!durability.ok()) return ComplainOfUsage(context, Message(durability.status()));
    options.durability = *durability;
  }
  Result<std::string> value = [&] {
    terminal::ProgressBar bar({.label = "reading"});
    return ReadValue(flags.file, wire::kValueBytesLimit, [&](uint64_t n) { bar.Update(n); });
  }();
  if (!value.ok()) return Complain(context, value.status());
  const auto connected = Connect(context);
  if (!connected.ok()) return NotConnected(context, connected.status());
  Client* const client = connected->get();
  const Status status =
      Await(client->PutAsync(flags.key, std::string_view(*value), options), "storing");
  if (status.code() == StatusCode::kAlreadyExists) {
    return Complain(
        context, Error(StatusCode::kAlreadyExists,
                       "{} exists with other content; --overwrite replaces it", Quoted(flags.key)));
  }
  if (!status.ok()) {
    return Complain(context,
                    fmt::format("put {} of {}", Quoted(flags.key), FormatBytes(value->size())),
                    status);
  }
  return Show(context, {{"key", flags.key}, {"bytes", value->size()}},
              fmt::format("stored {} bytes under {}\n", value->size(), Quoted(flags.key)));
}

// The value, whole: one read, so that it is of one Put whatever else goes on.
Result<std::string> Fetch(Client* client, const Context& context, const std::string& key) {
  const GetOptions options{.timeout = context.timeout()};
  const auto promise = std::make_shared<std::promise<Result<std::string>>>();
  std::future<Result<std::string>> value = promise->get_future();
  if (!client->Submit([=] { promise->set_value(client->Get(key, options)); })) {
    return Error(StatusCode::kResourceExhausted, "the client's queue is full");
  }
  return Await(std::move(value), "loading");
}

int RunGet(const Context& context, const Flags& flags) {
  const auto connected = Connect(context);
  if (!connected.ok()) return NotConnected(context, connected.status());
  Client* const client = connected->get();
  const Result<std::string> value = Fetch(client, context, flags.key);
  if (value.status().code() == StatusCode::kNotFound) return NotFound(context, flags.key);
  if (!value.ok())
    return Complain(context, fmt::format("get {}", Quoted(flags.key)), value.status());
  if (flags.file == "-") {
    if (Print(*value)) return kExitOk;
    return Complain(context, Error(StatusCode::kInternal, "cannot write to standard output"));
  }
  const Status written = [&] {
    terminal::ProgressBar bar({.label = "writing", .total = value->size()});
    return WriteValue(flags.file, *value, [&](uint64_t n) { bar.Update(n); });
  }();
  if (!written.ok()) return Complain(context, written);
  return Show(context, {{"key", flags.key}, {"bytes", value->size()}, {"file", flags.file}}, "");
}

std::vector<KeyItem> ItemsOf(const std::vector<std::string>& keys) {
  std::vector<KeyItem> items;
  for (const std::string& key : keys) items.push_back({.key = key});
  return items;
}

// One line or entry a key, then `exit_code`.
int ShowEach(const Context& context, const std::vector<std::string>& keys,
             const std::vector<std::string>& words, int exit_code) {
  Table table({{"key", Align::kLeft}, {"result", Align::kLeft}});
  Json json = Json::array();
  for (size_t i = 0; i < keys.size(); ++i) {
    table.AddRow({Printable(keys[i], 512), words[i]});
    json.push_back({{"key", keys[i]}, {"result", words[i]}});
  }
  const int shown = Show(context, json, table.Render());
  return exit_code == kExitOk ? shown : exit_code;
}

// Of many keys: a failure counts more than a key that is not there.
int Worse(int one, int other) {
  if (one == kExitOk || one == kExitNotFound) return other == kExitOk ? one : other;
  return one;
}

int RunExists(const Context& context, const Flags& flags) {
  const auto connected = Connect(context);
  if (!connected.ok()) return NotConnected(context, connected.status());
  Client* const client = connected->get();
  const auto found =
      client->MultiExists(ItemsOf(flags.keys), {.touch = false, .timeout = context.timeout()});
  std::vector<std::string> words;
  int exit_code = kExitOk;
  for (size_t i = 0; i < found.size(); ++i) {
    if (!found[i].ok()) {
      const std::string what = fmt::format("exists {}", Quoted(flags.keys[i]));
      exit_code = Worse(exit_code, Complain(context, what, found[i].status()));
    } else if (!*found[i]) {
      exit_code = Worse(exit_code, kExitNotFound);
    }
    words.push_back(!found[i].ok() ? "failed" : *found[i] ? "exists" : "not found");
  }
  return ShowEach(context, flags.keys, words, exit_code);
}

int RunRm(const Context& context, const Flags& flags) {
  const auto connected = Connect(context);
  if (!connected.ok()) return NotConnected(context, connected.status());
  Client* const client = connected->get();
  const auto removed = client->MultiRemove(ItemsOf(flags.keys), {.timeout = context.timeout()});
  std::vector<std::string> words;
  int exit_code = kExitOk;
  for (size_t i = 0; i < removed.size(); ++i) {
    const bool missing = removed[i].code() == StatusCode::kNotFound;
    words.push_back(removed[i].ok() ? "removed" : missing ? "not found" : "failed");
    if (removed[i].ok()) continue;
    const std::string what = fmt::format("rm {}", Quoted(flags.keys[i]));
    exit_code = Worse(exit_code, missing ? NotFound(context, flags.keys[i])
                                         : Complain(context, what, removed[i]));
  }
  return ShowEach(context, flags.keys, words, exit_code);
}

int RunStat(const Context& context, const Flags& flags) {
  const auto connected = Connect(context);
  if (!connected.ok()) return NotConnected(context, connected.status());
  Client* const client = connected->get();
  const Result<uint64_t> bytes =
      client->Stat(flags.key, {.touch = false, .timeout = context.timeout()});
  if (bytes.status().code() == StatusCode::kNotFound) return NotFound(context, flags.key);
  if (!bytes.ok())
    return Complain(context, fmt::format("stat {}", Quoted(flags.key)), bytes.status());
  const SlotId slot = SlotOf(client->name_space().ref.id, flags.key);
  const ViewCache::View view = client->views().view();
  const NodeInfo* owner = view == nullptr ? nullptr : view->Owner(slot);
  const std::string owner_name = owner == nullptr ? "" : owner->name;
  Table table({{"key", Align::kLeft}, {"bytes"}, {"slot"}, {"server", Align::kLeft}});
  table.AddRow({Printable(flags.key, 512), fmt::format("{}", *bytes),
                fmt::format("{}", slot.value()), owner_name});
  return Show(
      context,
      {{"key", flags.key}, {"bytes", *bytes}, {"slot", slot.value()}, {"server", owner_name}},
      table.Render());
}

}  // namespace

void AddObjectCommands(Command* program, const Context* context) {
  const auto flags = std::make_shared<Flags>();
  const auto add = [&](const char* name, const char* help,
                       int (*command)(const Context&, const Flags&)) {
    Command* added = program->AddCommand(name, help);
    added->SetRun([=] { return command(*context, *flags); });
    return added;
  };
  Command* put = add("put", "Store a file or standard input under a key", RunPut);
  put->AddOption("key", &flags->key, "1 to 512 bytes", {.required = true});
  put->AddOption("file", &flags->file, "File to store; - is standard input", {.required = true});
  put->AddFlag("--overwrite", &flags->overwrite, "Replace a value with other content");
  put->AddOption("--durability", &flags->durability, "dram or ssd; else as the namespace says");

  Command* get = add("get", "Load a value into a file or standard output", RunGet);
  get->AddOption("key", &flags->key, "", {.required = true});
  get->AddOption("file", &flags->file, "File to write, whole or not at all; - is standard output",
                 {.show_default = false});

  Command* exists = add("exists", "Which keys exist; exit 3 unless all do", RunExists);
  exists->AddOption("key", &flags->keys, "", {.required = true});
  Command* rm = add("rm", "Remove keys; exit 3 when one was not there", RunRm);
  rm->AddOption("key", &flags->keys, "", {.required = true});
  Command* stat = add("stat", "Length, slot and server of a value", RunStat);
  stat->AddOption("key", &flags->key, "", {.required = true});
}

}  // namespace ems::emsctl
