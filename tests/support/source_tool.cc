// What model_files/source does, for tests in scripts; no part of the product.
//
//   source_tool list URL                      all files, as JSON
//   source_tool read URL PATH OFFSET BYTES    SHA-256 of that range of a file as List gives it
//   source_tool fetch URL [PIECE_BYTES]       SHA-256 of every file, read in pieces on four threads
//
// Options come from the environment: EMS_TEST_ACCESS_KEY, EMS_TEST_SECRET_KEY,
// EMS_TEST_SESSION_TOKEN, EMS_TEST_BEARER, EMS_TEST_CA_FILE, EMS_TEST_FILES (comma-separated),
// EMS_TEST_RETRIES, EMS_TEST_BYTES_PER_S, EMS_TEST_DEADLINE_S. Prints one JSON object: "error" and
// "message" instead of a result when it failed; "counters" in any case. Exit code: 0, also for
// errors; 2 usage.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/guarded.h"
#include "common/sha256.h"
#include "common/thread_pool.h"
#include "model_files/source/open_source.h"

namespace ems::model {
namespace {

using Json = nlohmann::json;

std::string Variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): before any thread
  return value == nullptr ? "" : value;
}

uint64_t NumberOr(const std::string& text, uint64_t otherwise) {
  return text.empty() ? otherwise : std::stoull(text);
}

SourceSpec SpecOf(const std::string& url) {
  SourceSpec spec;
  spec.url = url;
  spec.credentials = {.access_key = Variable("EMS_TEST_ACCESS_KEY"),
                      .secret_key = Variable("EMS_TEST_SECRET_KEY"),
                      .session_token = Variable("EMS_TEST_SESSION_TOKEN"),
                      .bearer_token = Variable("EMS_TEST_BEARER")};
  spec.ca_file = Variable("EMS_TEST_CA_FILE");
  spec.retries_max = static_cast<uint32_t>(NumberOr(Variable("EMS_TEST_RETRIES"), 5));
  spec.retry_delay = std::chrono::milliseconds(20);
  spec.bytes_per_s_max = NumberOr(Variable("EMS_TEST_BYTES_PER_S"), 0);
  std::string files = Variable("EMS_TEST_FILES");
  while (!files.empty()) {
    const size_t end = std::min(files.find(','), files.size());
    spec.files.push_back(files.substr(0, end));
    files.erase(0, end + 1);
  }
  return spec;
}

Result<Json> ListFiles(WeightSource* source, Deadline deadline) {
  Result<std::vector<SourceFile>> files = source->List(deadline);
  if (!files.ok()) return files.status();
  Json out = Json::array();
  for (const SourceFile& file : *files) {
    out.push_back({{"path", file.path}, {"bytes", file.bytes}, {"tag", file.tag}});
  }
  return out;
}

Result<Json> ReadRange(WeightSource* source, const std::string& path, uint64_t offset,
                       uint64_t bytes, Deadline deadline) {
  Result<std::vector<SourceFile>> files = source->List(deadline);
  if (!files.ok()) return files.status();
  for (const SourceFile& file : *files) {
    if (file.path != path) continue;
    std::vector<std::byte> into(bytes);
    EMS_RETURN_IF_ERROR(source->Read(file, offset, into, deadline));
    return Json(ToHex(Sha256().Digest(into)));
  }
  return Error(StatusCode::kNotFound, "the list has no {}", path);
}

Result<Json> Fetch(WeightSource* source, uint64_t piece_bytes, Deadline deadline) {
  Result<std::vector<SourceFile>> files = source->List(deadline);
  if (!files.ok()) return files.status();
  struct Piece {
    const SourceFile* file;
    uint64_t offset;
    MutableBytes into;
  };
  std::vector<std::vector<std::byte>> contents;
  contents.reserve(files->size());
  std::vector<Piece> pieces;
  for (const SourceFile& file : *files) {
    contents.emplace_back(file.bytes);
    for (uint64_t at = 0; at < file.bytes; at += piece_bytes) {
      const uint64_t length = std::min(piece_bytes, file.bytes - at);
      pieces.push_back({&file, at, MutableBytes(contents.back()).subspan(at, length)});
    }
  }
  std::atomic<size_t> next{0};
  Guarded<Status> failed;
  std::vector<Thread> threads;
  threads.reserve(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back("fetch", [&] {
      for (size_t at = next.fetch_add(1); at < pieces.size(); at = next.fetch_add(1)) {
        const Status status =
            source->Read(*pieces[at].file, pieces[at].offset, pieces[at].into, deadline);
        if (status.ok()) continue;
        auto first = failed.Lock();
        first->Update(status);
      }
    });
  }
  threads.clear();
  {
    auto first = failed.Lock();
    EMS_RETURN_IF_ERROR(*first);
  }
  Json out = Json::object();
  for (size_t i = 0; i < files->size(); ++i) {
    out[(*files)[i].path] = ToHex(Sha256().Digest(contents[i]));
  }
  return out;
}

int Main(const std::vector<std::string>& arguments) {
  if (arguments.size() < 2) {
    std::fputs("usage: source_tool list|read|fetch URL …\n", stderr);
    return 2;
  }
  Json out = Json::object();
  Result<Json> result = Error(StatusCode::kInvalidArgument, "no such command");
  Result<std::unique_ptr<WeightSource>> source = OpenSource(SpecOf(arguments[1]));
  if (source.ok()) {
    const Deadline deadline =
        Deadline::After(std::chrono::seconds(NumberOr(Variable("EMS_TEST_DEADLINE_S"), 30)));
    if (arguments[0] == "list") result = ListFiles(source->get(), deadline);
    if (arguments[0] == "read" && arguments.size() == 5) {
      result = ReadRange(source->get(), arguments[2], std::stoull(arguments[3]),
                         std::stoull(arguments[4]), deadline);
    }
    if (arguments[0] == "fetch") {
      result =
          Fetch(source->get(), NumberOr(arguments.size() > 2 ? arguments[2] : "", kMiB), deadline);
    }
    const SourceCounters counters = (*source)->counters();
    out["counters"] = {{"bytes_read", counters.bytes_read},
                       {"requests", counters.requests},
                       {"retries", counters.retries}};
  } else {
    result = source.status();
  }
  if (result.ok()) {
    out["result"] = *result;
  } else {
    out["error"] = CodeName(result.status().code());
    out["message"] = Message(result.status());
  }
  std::puts(out.dump(1).c_str());
  return 0;
}

}  // namespace
}  // namespace ems::model

int main(int argc, char** argv) {
  return ems::model::Main(std::vector<std::string>(argv + 1, argv + argc));
}
