// A client process of the one-sided storm: reads, looks and puts at random, and checks every byte.
//   one_sided_reader CONTROLLER SEED KEYS VALUE_BYTES_MAX READERS WRITERS
// Runs until SIGTERM, then prints one line of JSON. Exit codes: 0 fine, 1 a wrong byte, 2 usage.
#include <signal.h>

#include <atomic>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "common/thread_pool.h"
#include "mp_sdk/client.h"
#include "tests/support/self_verifying.h"

namespace ems::testing {
namespace {

constexpr std::string_view kNamespace = "default";
constexpr size_t kViewsHeldMax = 24;

std::atomic<bool> stop{false};

struct Work {
  Client* client = nullptr;
  uint64_t keys = 0;
  uint64_t value_bytes_max = 0;
};
struct Counts {
  std::atomic<uint64_t> reads{0}, hits{0}, views{0}, mapped{0}, refused{0}, puts{0}, errors{0},
      wrong{0};
};
Counts counts;

std::string KeyOf(uint64_t number) { return "object-" + std::to_string(number); }

// The same for each Put of the key, so that a Put of what is there moves no bytes.
uint64_t BytesOf(uint64_t number, const Work& work) {
  return 64 + Hash64(AsBytes(KeyOf(number))) % work.value_bytes_max;
}

void OnWrong(std::string_view how, std::string_view key) {
  counts.wrong.fetch_add(1);
  std::fprintf(stderr, "WRONG BYTES: %.*s of %.*s\n", static_cast<int>(how.size()), how.data(),
               static_cast<int>(key.size()), key.data());
}

bool IsRight(std::string_view key, std::string_view bytes) {
  return VerifyValue(kNamespace, key, bytes).has_value();
}

void CopyOne(const Work& work, std::string_view key, Verify verify, std::vector<std::byte>* room) {
  GetOptions options;
  options.verify = verify;
  const Result<uint64_t> got = work.client->Get(key, MutableBuffers(MutableBytes(*room)), options);
  counts.reads.fetch_add(1);
  if (!got.ok()) {
    if (got.status().code() != StatusCode::kNotFound) counts.errors.fetch_add(1);
    return;
  }
  counts.hits.fetch_add(1);
  if (!IsRight(key, AsText(ConstBytes(*room).first(*got)))) OnWrong("a copy", key);
}

// Views are kept for a while and looked at again when they go.
struct Held {
  std::string key;
  ObjectView view;
};

void ViewOne(const Work& work, std::string_view key, std::deque<Held>* held) {
  Result<ObjectView> view = work.client->GetView(key);
  counts.reads.fetch_add(1);
  if (!view.ok()) {
    const StatusCode code = view.status().code();
    if (code == StatusCode::kResourceExhausted) counts.refused.fetch_add(1);
    if (code != StatusCode::kNotFound && code != StatusCode::kResourceExhausted)
      counts.errors.fetch_add(1);
    return;
  }
  counts.hits.fetch_add(1);
  counts.views.fetch_add(1);
  if (view->mapped()) counts.mapped.fetch_add(1);
  if (!IsRight(key, AsText(view->bytes()))) OnWrong("a new view", key);
  held->push_back({std::string(key), *std::move(view)});
  if (held->size() <= kViewsHeldMax) return;
  const Held& oldest = held->front();
  if (!IsRight(oldest.key, AsText(oldest.view.bytes()))) OnWrong("a held view", oldest.key);
  held->pop_front();
}

void ReadOn(const Work& work, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> room(work.value_bytes_max + 64);
  std::deque<Held> held;
  while (!stop.load()) {
    const std::string key = KeyOf(random() % work.keys);
    switch (random() % 4) {
      case 0:
        CopyOne(work, key, Verify::kAlways, &room);
        break;
      case 1:
        CopyOne(work, key, Verify::kNever, &room);  // the protocol alone has to hold
        break;
      default:
        ViewOne(work, key, &held);
    }
  }
}

void WriteOn(const Work& work, uint64_t seed) {
  std::mt19937_64 random(seed);
  while (!stop.load()) {
    const uint64_t number = random() % work.keys;
    const std::string key = KeyOf(number);
    PutOptions options;
    options.overwrite = random() % 4 == 0;
    const uint64_t put_id = options.overwrite ? random() : 1;
    const std::string value = MakeValue(kNamespace, key, put_id, BytesOf(number, work));
    const Status put = work.client->Put(key, std::string_view(value), options);
    counts.puts.fetch_add(1);
    if (!put.ok() && put.code() != StatusCode::kAlreadyExists &&
        put.code() != StatusCode::kResourceExhausted)
      counts.errors.fetch_add(1);
  }
}

uint64_t NumberOf(const char* text) {
  uint64_t number = 0;
  const std::string_view view(text);
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), number);
  if (error == std::errc() && end == view.data() + view.size()) return number;
  std::fprintf(stderr, "\"%s\" is not a number\n", text);
  std::exit(2);
}

int Main(int argc, char** argv) {
  if (argc < 7) {  // the harness adds flags for daemons
    std::fprintf(stderr, "usage: %s CONTROLLER SEED KEYS VALUE_BYTES_MAX READERS WRITERS\n",
                 argv[0]);
    return 2;
  }
  struct sigaction action {};
  action.sa_handler = [](int) { stop.store(true); };
  sigaction(SIGTERM, &action, nullptr);
  ClientOptions options;
  options.controller = argv[1];
  const auto client = Client::Connect(options);
  if (!client.ok()) {
    std::fprintf(stderr, "%s\n", ToString(client.status()).c_str());
    return 2;
  }
  const uint64_t seed = NumberOf(argv[2]);
  const Work work{client->get(), NumberOf(argv[3]), NumberOf(argv[4])};
  std::vector<Thread> threads;
  for (uint64_t i = 0; i < NumberOf(argv[5]); ++i)
    threads.emplace_back("reader", [&work, seed, i] { ReadOn(work, seed * 100 + i); });
  for (uint64_t i = 0; i < NumberOf(argv[6]); ++i)
    threads.emplace_back("writer", [&work, seed, i] { WriteOn(work, seed * 100 + 50 + i); });
  threads.clear();
  const ClientStats stats = (*client)->stats();
  const nlohmann::json line = {{"reads", counts.reads.load()},
                               {"hits", counts.hits.load()},
                               {"views", counts.views.load()},
                               {"mapped", counts.mapped.load()},
                               {"refused", counts.refused.load()},
                               {"puts", counts.puts.load()},
                               {"errors", counts.errors.load()},
                               {"wrong", counts.wrong.load()},
                               {"one_sided", stats.one_sided},
                               {"not_attached", stats.not_attached},
                               {"not_current", stats.not_current},
                               {"not_conclusive", stats.not_conclusive},
                               {"checksum_mismatches", stats.checksum_mismatches}};
  std::printf("%s\n", line.dump().c_str());
  return counts.wrong.load() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace ems::testing

int main(int argc, char** argv) { return ems::testing::Main(argc, argv); }
