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

// Null, after a complaint, when there is no connection.
std::unique_ptr<Client> Connect(const Context& context) {
  ClientOptions options;
  options.controller = context.controller;
  options.name_space = context.name_space;
  options.start_timeout = context.timeout();
  Result<std::unique_ptr<Client>> client = Client::Connect(options);
  if (client.ok()) {
    // Nothing has been asked of a server yet, and a client stays with its cluster.
    const Status ours = context.joined->Join((*client)->views().cluster());
    if (ours.ok()) return std::move(*client);
    Unreachable(ours);
    return nullptr;
  }
  if (client.status().code() == StatusCode::kNotFound) {
    Complain(fmt::format("there is no namespace {}; `emsctl namespace list` shows them",
                         context.name_space));
  } else {
    Unreachable(client.status());
  }
  return nullptr;
}

// Waits for a call that has a deadline of its own, with a clock on the terminal when it takes long.
template <typename T>
T Await(std::future<T> call, const std::string& label) {
  terminal::ProgressBar bar({.label = label});
  while (call.wait_for(kBarInterval) != std::future_status::ready) bar.Update(0);
  return call.get();
}

std::string Quoted(std::string_view key) { return fmt::format("\"{}\"", Printable(key)); }

int NotFound(std::string_view key) { return Complain(fmt::format("{} not found", Quoted(key))); }

int RunPut(const Context& context, const Flags& flags) {
  PutOptions options{.overwrite = flags.overwrite, .timeout = context.timeout()};
  if (!flags.durability.empty()) {
    const Result<Durability> durability = ParseDurability(flags.durability);
    if (!durability.ok()) {
      Complain(Message(durability.status()));
      return kExitUsage;
    }
    options.durability = *durability;
  }
  Result<std::string> value = [&] {
    terminal::ProgressBar bar({.label = "reading"});
    return ReadValue(flags.file, wire::kValueBytesLimit, [&](uint64_t n) { bar.Update(n); });
  }();
  if (!value.ok()) return Complain(Message(value.status()));
  const std::unique_ptr<Client> client = Connect(context);
  if (client == nullptr) return kExitFailed;
  const Status status =
      Await(client->PutAsync(flags.key, std::string_view(*value), options), "storing");
  if (status.code() == StatusCode::kAlreadyExists) {
    return Complain(
        fmt::format("{} exists with other content; --overwrite replaces it", Quoted(flags.key)));
  }
  if (!status.ok()) {
    return Complain(fmt::format("put {} of {}", Quoted(flags.key), FormatBytes(value->size())),
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
  const std::unique_ptr<Client> client = Connect(context);
  if (client == nullptr) return kExitFailed;
  const Result<std::string> value = Fetch(client.get(), context, flags.key);
  if (value.status().code() == StatusCode::kNotFound) return NotFound(flags.key);
  if (!value.ok()) return Complain(fmt::format("get {}", Quoted(flags.key)), value.status());
  if (flags.file == "-") {
    if (Print(*value)) return kExitOk;
    return Complain("cannot write to standard output");
  }
  const Status written = [&] {
    terminal::ProgressBar bar({.label = "writing", .total = value->size()});
    return WriteValue(flags.file, *value, [&](uint64_t n) { bar.Update(n); });
  }();
  if (!written.ok()) return Complain(Message(written));
  return Show(context, {{"key", flags.key}, {"bytes", value->size()}, {"file", flags.file}}, "");
}

std::vector<KeyItem> ItemsOf(const std::vector<std::string>& keys) {
  std::vector<KeyItem> items;
  for (const std::string& key : keys) items.push_back({.key = key});
  return items;
}

// One line or entry a key; 1 when `all_good` is false.
int ShowEach(const Context& context, const std::vector<std::string>& keys,
             const std::vector<std::string>& words, bool all_good) {
  Table table({{"key", Align::kLeft}, {"result", Align::kLeft}});
  Json json = Json::array();
  for (size_t i = 0; i < keys.size(); ++i) {
    table.AddRow({Printable(keys[i], 512), words[i]});
    json.push_back({{"key", keys[i]}, {"result", words[i]}});
  }
  const int shown = Show(context, json, table.Render());
  return all_good ? shown : kExitFailed;
}

int RunExists(const Context& context, const Flags& flags) {
  const std::unique_ptr<Client> client = Connect(context);
  if (client == nullptr) return kExitFailed;
  const auto found =
      client->MultiExists(ItemsOf(flags.keys), {.touch = false, .timeout = context.timeout()});
  std::vector<std::string> words;
  bool all = true;
  for (size_t i = 0; i < found.size(); ++i) {
    if (!found[i].ok())
      Complain(fmt::format("exists {}", Quoted(flags.keys[i])), found[i].status());
    words.push_back(!found[i].ok() ? "failed" : *found[i] ? "exists" : "not found");
    all = all && found[i].ok() && *found[i];
  }
  return ShowEach(context, flags.keys, words, all);
}

int RunRm(const Context& context, const Flags& flags) {
  const std::unique_ptr<Client> client = Connect(context);
  if (client == nullptr) return kExitFailed;
  const auto removed = client->MultiRemove(ItemsOf(flags.keys), {.timeout = context.timeout()});
  std::vector<std::string> words;
  bool all = true;
  for (size_t i = 0; i < removed.size(); ++i) {
    const bool missing = removed[i].code() == StatusCode::kNotFound;
    if (missing) NotFound(flags.keys[i]);
    if (!removed[i].ok() && !missing) {
      Complain(fmt::format("rm {}", Quoted(flags.keys[i])), removed[i]);
    }
    words.push_back(removed[i].ok() ? "removed" : missing ? "not found" : "failed");
    all = all && removed[i].ok();
  }
  return ShowEach(context, flags.keys, words, all);
}

int RunStat(const Context& context, const Flags& flags) {
  const std::unique_ptr<Client> client = Connect(context);
  if (client == nullptr) return kExitFailed;
  const Result<uint64_t> bytes =
      client->Stat(flags.key, {.touch = false, .timeout = context.timeout()});
  if (bytes.status().code() == StatusCode::kNotFound) return NotFound(flags.key);
  if (!bytes.ok()) return Complain(fmt::format("stat {}", Quoted(flags.key)), bytes.status());
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

  Command* exists = add("exists", "Which keys exist; exit 1 unless all do", RunExists);
  exists->AddOption("key", &flags->keys, "", {.required = true});
  Command* rm = add("rm", "Remove keys; exit 1 when one was not there", RunRm);
  rm->AddOption("key", &flags->keys, "", {.required = true});
  Command* stat = add("stat", "Length, slot and server of a value", RunStat);
  stat->AddOption("key", &flags->key, "", {.required = true});
}

}  // namespace ems::emsctl
