// emsctl model list, show, create, delete, check, prefetch, load, cancel, pin, unpin.
#include <fnmatch.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/command_line.h"
#include "common/retry.h"
#include "common/thread_pool.h"
#include "ems_model/file_target.h"
#include "ems_model/host_target.h"
#include "ems_model/model_cache.h"
#include "model_files/source/credentials_file.h"
#include "tools/emsctl/context.h"
#include "tools/emsctl/model_text.h"
#include "tools/emsctl/output.h"
#include "tools/terminal.h"

namespace ems::emsctl {
namespace {

using Json = nlohmann::ordered_json;
using model::ModelCache;
using model::ModelInfo;
using model::ModelName;

constexpr auto kLineEvery = std::chrono::seconds(5);  // where there is no terminal

struct Flags {
  std::string name;
  std::string url;
  std::string name_space = "models";
  std::string block = "16MiB";
  std::string rate = "0";
  std::vector<std::string> files, include;
  std::string credentials, credentials_file, ca_file;
  bool verify_source = false, no_verify_source = false, ignore_etags = false;
  std::string folder;
  uint32_t priority = 0;
  uint32_t threads = 4;
  bool wait = false, no_source = false, verify = false;
  double within_seconds = 3600;
  double job_seconds = 0;  // not said

  model::SourceVerify source_verify() const {
    if (no_verify_source) return model::SourceVerify::kNever;
    return verify_source ? model::SourceVerify::kAlways : model::SourceVerify::kAuto;
  }

  Deadline within() const { return Deadline::After(Seconds(within_seconds)); }
  Duration job_timeout() const { return Seconds(job_seconds); }
  static Duration Seconds(double seconds) {
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  }
};

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): one thread
  return value == nullptr ? "" : value;
}

// Shows the progress of an operation: a bar on a terminal, else a line now and then, but for
// programs.
class Advance final {
 public:
  Advance(const Context& context, const std::string& label, uint64_t bytes)
      : label_(label),
        bytes_(bytes),
        lines_(::isatty(STDERR_FILENO) == 0 && !context.json),
        begin_(Clock::System().Now()),
        next_(begin_ + kLineEvery),
        bar_({.label = label, .total = bytes}) {}
  void Update(uint64_t done) {
    bar_.Update(done);
    const TimePoint now = Clock::System().Now();
    if (!lines_ || now < next_) return;
    next_ = now + kLineEvery;
    const std::string text = terminal::BarText(label_, done, bytes_, "bytes", now - begin_);
    std::fprintf(stderr, "%s\n", text.c_str());
  }

 private:
  const std::string label_;
  const uint64_t bytes_;
  const bool lines_;
  const TimePoint begin_;
  TimePoint next_;
  terminal::ProgressBar bar_;
};

// Ctrl-C and SIGTERM end a load, so that what is half written goes; the second one ends emsctl at
// once. A signal handler reaches nothing but globals.
std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void CatchInterrupts() {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted.store(true, std::memory_order_relaxed); };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  (void)::sigaction(SIGINT, &action, nullptr);
  (void)::sigaction(SIGTERM, &action, nullptr);
}

// Keys for reads of this process: from the file, else from the environment.
Result<model::SourceCredentials> Credentials(const Flags& flags) {
  if (!flags.credentials_file.empty())
    return model::ReadCredentials(flags.credentials_file, flags.credentials);
  model::SourceCredentials keys;
  keys.access_key = Variable("AWS_ACCESS_KEY_ID");
  keys.secret_key = Variable("AWS_SECRET_ACCESS_KEY");
  keys.session_token = Variable("AWS_SESSION_TOKEN");
  return keys;
}

// Keys are for object stores alone.
bool IsS3(const std::string& url) { return url.starts_with("s3://"); }

Result<std::unique_ptr<ModelCache>> Open(const Context& context, const Flags& flags,
                                         const std::string& url) {
  model::ModelCacheOptions options;
  options.controller = context.controller;
  options.cluster = context.joined->cluster();
  options.name_space = flags.name_space;
  options.start_timeout = context.timeout();
  options.source_ca_file = flags.ca_file;
  if (IsS3(url) || !flags.credentials_file.empty()) {
    EMS_ASSIGN_OR_RETURN(options.source_credentials, Credentials(flags));
  }
  return std::make_unique<ModelCache>(options);
}

std::unique_ptr<ModelCache> Open(const Context& context) {
  return std::make_unique<ModelCache>(model::ModelCacheOptions{.controller = context.controller,
                                                               .cluster = context.joined->cluster(),
                                                               .start_timeout = context.timeout()});
}

int Failed(const Context& context, std::string_view what, const Flags& flags,
           const Status& status) {
  const std::string call = fmt::format("model {} {}", what, Printable(flags.name, 300));
  // What sources and jobs have to say needs no advice about the cluster, and what is there already
  // has been named.
  if (Message(status).starts_with("controller ") && status.code() != StatusCode::kAlreadyExists)
    return Complain(context, call, status);
  const Status said = Prefixed(status, call);
  return Complain(context,
                  context.json ? said : Error(said.code(), "{}: {}", call, ToString(status)));
}

// A controller that is being restarted is waited for.
Result<ModelInfo> GetPatiently(const Context& context, const ModelName& name) {
  const auto cache = Open(context);
  const Deadline deadline = context.deadline();
  Backoff backoff(static_cast<uint64_t>(::getpid()));
  StopFlag pause;
  while (true) {
    auto info = cache->Get(name, deadline);
    if (info.status().code() != StatusCode::kUnavailable || deadline.Passed()) return info;
    pause.WaitFor(std::min(backoff.Next(), deadline.Remaining()));
  }
}

// Parses the name, or complains and returns nothing: a usage error.
std::optional<ModelName> NameOf(const Context& context, const Flags& flags, bool needs_version) {
  const Result<ModelName> name = ModelName::Parse(flags.name);
  if (!name.ok()) {
    (void)ComplainOfUsage(context, Message(name.status()));
    return std::nullopt;
  }
  if (needs_version && name->version.empty()) {
    (void)ComplainOfUsage(context, fmt::format("name the version, too: {}@VERSION", flags.name));
    return std::nullopt;
  }
  return *name;
}

// What a command has done in the cluster that `cache` belongs to.
int ShowModel(const Context& context, const ModelCache& cache, const ModelInfo& info,
              const std::string& text) {
  (void)context.joined->Join(cache.cluster());  // the same, if one was meant
  return ShowChange(context, ModelJson(info), text + "\n");
}

int RunCreate(const Context& context, const Flags& flags) {
  const std::optional<ModelName> name = NameOf(context, flags, true);
  const Result<uint64_t> block = ParseBytes(flags.block);
  const Result<uint64_t> rate = ParseBytes(flags.rate);
  if (!block.ok()) (void)ComplainOfUsage(context, Message(block.status()));
  if (!rate.ok()) (void)ComplainOfUsage(context, Message(rate.status()));
  if (!name || !block.ok() || !rate.ok()) return kExitUsage;
  std::string url = flags.url;
  // Servers have another working folder.
  if (url.find("://") == std::string::npos) {
    std::error_code error;
    url = std::filesystem::absolute(url, error).lexically_normal().string();
    if (error) {
      return Complain(context, Error(StatusCode::kInternal, "{}: {}", flags.url, error.message()));
    }
  }
  const auto cache = Open(context, flags, url);
  if (!cache.ok()) return Failed(context, "create", flags, cache.status());
  std::string note;  // of an addition that succeeds
  const model::AddOptions options{
      .block_bytes = *block,
      .files = flags.files,
      .include = flags.include,
      .credentials = flags.credentials,
      .bytes_per_s_max = *rate,
      .verify = flags.source_verify(),
      .ignore_tags = flags.ignore_etags,
      .on_warning = [&](const std::string& text) { Remark(context, "warning", text); },
      .on_note = [&](const std::string& text) { note = text; }};
  const Result<ModelInfo> added = (*cache)->Add(*name, url, options, flags.within());
  if (!added.ok()) return Failed(context, "create", flags, added.status());
  // The same files again are what is there, unchanged; but not what was asked for here. How they
  // are read first is not among it: a note says so.
  const model::ManifestSource& there = added->source;
  if (there.url != url || there.credentials != flags.credentials ||
      there.bytes_per_s_max != *rate || added->name_space != flags.name_space) {
    return Failed(
        context, "create", flags,
        Error(
            StatusCode::kAlreadyExists,
            "it exists already, with the same files, from {} with credentials \"{}\", "
            "{} bytes a second at most, in namespace {}: `emsctl model delete` it first to change "
            "that",
            there.url, there.credentials, there.bytes_per_s_max, added->name_space));
  }
  if (!note.empty()) Remark(context, "note", note);
  return ShowModel(context, **cache, *added,
                   fmt::format("added {}: {} in {} files, {} blocks", added->name.Text(),
                               FormatBytes(added->bytes), added->files, added->blocks));
}

int RunList(const Context& context, const Flags&) {
  const auto models = Open(context)->List(context.deadline());
  if (!models.ok()) return Unreachable(context, models.status());
  Json json = Json::array();
  for (const ModelInfo& info : *models) json.push_back(ModelJson(info));
  return Show(context, json, ModelsText(*models));
}

int RunShow(const Context& context, const Flags& flags) {
  const std::optional<ModelName> name = NameOf(context, flags, false);
  if (!name) return kExitUsage;
  const auto cache = Open(context);
  const Result<ModelInfo> info = cache->Get(*name, context.deadline());
  if (!info.ok()) return Failed(context, "show", flags, info.status());
  const auto manifest = cache->GetManifest(info->name, context.deadline());
  if (!manifest.ok()) return Failed(context, "show", flags, manifest.status());
  Json json = ModelJson(*info);
  json["manifest"] = ManifestJson(*manifest);
  return Show(context, json, ModelText(*info, *manifest));
}

int RunCheck(const Context& context, const Flags& flags) {
  const std::optional<ModelName> name = NameOf(context, flags, false);
  if (!name) return kExitUsage;
  const auto check = Open(context)->Check(*name, context.deadline());
  if (!check.ok()) return Failed(context, "check", flags, check.status());
  const int shown = Show(context, CheckJson(*check), CheckText(*check));
  return check->dram_bytes + check->ssd_bytes == check->info.bytes ? shown : kExitFailed;
}

int RunPrefetch(const Context& context, const Flags& flags) {
  const std::optional<ModelName> name = NameOf(context, flags, false);
  if (!name) return kExitUsage;
  const auto cache = Open(context);
  const auto begun =
      cache->Prefetch(*name, flags.priority, context.deadline(), flags.job_timeout());
  if (!begun.ok()) return Failed(context, "prefetch", flags, begun.status());
  const std::string text = begun->name.Text();
  if (!flags.wait) {
    return ShowModel(
        context, *cache, *begun,
        fmt::format("job {} of {} is running; `emsctl model show {}` tells how far it is",
                    begun->job.number, text, text));
  }
  const auto done = [&] {
    Advance advance(context, "prefetching", begun->bytes);
    return cache->WaitPrefetched(begun->name, flags.within(), [&](const auto& progress) {
      advance.Update(progress.info.job.bytes_done);
    });
  }();
  if (!done.ok()) return Failed(context, "prefetch", flags, done.status());
  return ShowModel(context, *cache, done->info, fmt::format("{}: {}", text, JobText(done->info)));
}

bool Wanted(const Flags& flags, std::string_view path) {
  if (flags.include.empty()) return true;
  for (const std::string& pattern : flags.include) {
    if (::fnmatch(pattern.c_str(), std::string(path).c_str(), 0) == 0) return true;
  }
  return false;
}

int RunLoad(const Context& context, const Flags& flags) {
  const std::optional<ModelName> name = NameOf(context, flags, false);
  if (!name) return kExitUsage;
  const Result<ModelInfo> info = GetPatiently(context, *name);
  if (!info.ok()) return Failed(context, "load", flags, info.status());
  const auto cache = Open(context, flags, info->source.url);
  if (!cache.ok()) return Failed(context, "load", flags, cache.status());
  const auto choose = [&](std::string_view path) { return Wanted(flags, path); };
  const auto target = [&]() -> std::unique_ptr<model::LoadTarget> {
    if (flags.folder == "-") {
      return std::make_unique<model::HostTarget>(
          model::HostTarget::Options{.choose = choose, .room = {}});
    }
    return std::make_unique<model::FileTarget>(
        model::FileTarget::Options{.folder = flags.folder, .choose = choose, .sync = true});
  }();
  const Result<model::LoadStats> stats = [&] {
    Advance advance(context, "loading", info->bytes);
    CatchInterrupts();
    model::LoadOptions options;
    options.threads = flags.threads;
    options.priority = flags.priority;
    options.fallback_to_source = !flags.no_source;
    options.verify_digests = flags.verify;
    options.stop = std::make_shared<StopFlag>();
    options.on_progress = [&](const model::LoadProgress& p) {
      if (interrupted.load(std::memory_order_relaxed)) options.stop->Set();
      advance.Update(p.bytes_done);
    };
    return (*cache)->Load(info->name, target.get(), options, flags.within());
  }();
  if (!stats.ok()) return Failed(context, "load", flags, stats.status());
  Json json = LoadJson(*stats);
  json["model"] = info->name.model;
  json["version"] = info->name.version;
  return Show(context, json, fmt::format("{}: {}\n", info->name.Text(), LoadText(*stats)));
}

int RunChange(const Context& context, const Flags& flags, std::string_view what,
              Result<ModelInfo> (ModelCache::*change)(const ModelName&, Deadline),
              std::string_view done) {
  const std::optional<ModelName> name = NameOf(context, flags, false);
  if (!name) return kExitUsage;
  const auto cache = Open(context);
  const Result<ModelInfo> info = (cache.get()->*change)(*name, context.deadline());
  if (!info.ok()) return Failed(context, what, flags, info.status());
  return ShowModel(context, *cache, *info, fmt::format("{} {}", done, info->name.Text()));
}

int RunPin(const Context& context, const Flags& flags) {
  return RunChange(context, flags, "pin", &ModelCache::Pin, "pinned");
}

int RunUnpin(const Context& context, const Flags& flags) {
  return RunChange(context, flags, "unpin", &ModelCache::Unpin, "unpinned");
}

int RunCancel(const Context& context, const Flags& flags) {
  return RunChange(context, flags, "cancel", &ModelCache::Cancel, "no prefetch is running of");
}

int RunRemove(const Context& context, const Flags& flags) {
  const std::optional<ModelName> name = NameOf(context, flags, true);
  if (!name) return kExitUsage;
  const auto cache = Open(context);
  const Status removed = cache->Remove(*name, context.deadline());
  if (!removed.ok()) return Failed(context, "delete", flags, removed);
  (void)context.joined->Join(cache->cluster());
  return ShowDone(context, "deleted", flags.name);
}

void AddSourceFlags(Command* command, Flags* flags) {
  command->AddOption("--credentials-file", &flags->credentials_file,
                     "File with keys by name, as the servers' models.credentials_file; else an "
                     "s3 source is read with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and "
                     "AWS_SESSION_TOKEN of the environment, or without keys");
  command->AddOption("--ca-file", &flags->ca_file,
                     "Certificates that https sources may have, in PEM; else the system's");
  command->AddOption("--within", &flags->within_seconds, "Seconds that all of it may take",
                     {.check = InRange{0.001, 86400.0}});
}

}  // namespace

void AddModelCommands(Command* program, const Context* context) {
  const auto flags = std::make_shared<Flags>();
  Command* group =
      program->AddCommand("model", "List, create, prefetch and load versions of models");
  const auto add = [&](const char* name, const char* help,
                       int (*command)(const Context&, const Flags&), bool named = true) {
    Command* added = group->AddCommand(name, help);
    added->SetRun([=] { return command(*context, *flags); });
    if (named) {
      added->AddOption("name", &flags->name,
                       "MODEL@VERSION; without @VERSION the one that was added last",
                       {.required = true});
    }
    return added;
  };
  Command* adds = add("create", "Make a version of the files that a source has now", RunCreate);
  adds->SetAlias("add");
  adds->AddOption("source", &flags->url,
                  "A folder that servers see, too, http(s)://HOST/PREFIX/ or "
                  "s3://BUCKET/PREFIX?endpoint=URL&region=R",
                  {.required = true});
  adds->AddOption("--block", &flags->block, "Longest block, 64KiB to 64MiB");
  adds->AddOption("--file", &flags->files, "Only this file of the source; may be repeated");
  adds->AddOption("--include", &flags->include, "Only files like this, e.g. '*.safetensors'");
  adds->AddOption("--into", &flags->name_space, "Namespace of its blocks, made when missing");
  adds->AddOption("--credentials", &flags->credentials,
                  "Name of the keys in the servers' models.credentials_file");
  adds->AddOption("--rate", &flags->rate,
                  "Most bytes a second that each server reads; 0: no limit");
  adds->AddFlag(
      "--verify", &flags->verify_source,
      "Read each block twice, over two connections, when it is read for the first time: it has to "
      "be the same. Without this, so are those that come over plain http and that the source gives "
      "no checksum of. Costs twice the source's bytes, once");
  adds->AddFlag("--no-verify", &flags->no_verify_source,
                "Read none twice: what is damaged on the way where nothing protects it is cached, "
                "and loaded as if it were right");
  adds->Exclude("--no-verify", "--verify");
  adds->AddFlag("--ignore-etags", &flags->ignore_etags,
                "Entity tags of this object store are no MD5: do not compare files with them");
  AddSourceFlags(adds, flags.get());
  adds->SetFooter("Example: emsctl model create qwen/7b@v1 s3://models/qwen-7b --credentials team");

  add("list", "All versions", RunList, false);
  add("show", "All about one version, with its files", RunShow);
  add("check", "How much of it is in DRAM and on SSD; exit 1 unless all is", RunCheck);
  Command* prefetch = add("prefetch", "Have the servers bring it into DRAM", RunPrefetch);
  prefetch->AddOption("--priority", &flags->priority, "0 to 1000; higher ones first",
                      {.show_default = false});
  prefetch->AddFlag("--wait", &flags->wait, "Until it is in DRAM");
  prefetch->AddOption("--within", &flags->within_seconds, "Seconds to wait at most");
  prefetch->AddOption("--timeout", &flags->job_seconds,
                      "Seconds that the job may take, 1 to 86400, an hour if not said: then it "
                      "fails, and names the "
                      "servers that are not ready; what has come in by then stays",
                      {.check = InRange{1.0, 86400.0}, .show_default = false});
  Command* load = add("load", "Load its files into a folder", RunLoad);
  load->AddOption("folder", &flags->folder,
                  "Where to; - loads into memory and drops it, to see how fast it is",
                  {.required = true});
  load->AddOption("--include", &flags->include, "Only files like this, e.g. '*.safetensors'");
  load->AddOption("--threads", &flags->threads, "Threads that read",
                  {.check = InRange{1, 64}, .show_default = false});
  load->AddOption("--priority", &flags->priority, "Of the prefetch that it may begin",
                  {.show_default = false});
  load->AddOption("--credentials", &flags->credentials, "Name of the keys in --credentials-file");
  load->AddFlag("--no-source", &flags->no_source, "From the pool alone, whatever happens to it");
  load->AddFlag("--verify", &flags->verify, "Verify the SHA-256 of each block, too");
  AddSourceFlags(load, flags.get());
  add("cancel", "End its prefetch", RunCancel);
  add("pin", "Keep it in DRAM", RunPin);
  add("unpin", "It may be evicted", RunUnpin);
  add("delete", "Forget it; its blocks are evicted in time", RunRemove);
}

}  // namespace ems::emsctl
