#include "mp_sdk/key_scan.h"

#include <chrono>
#include <utility>

#include "cluster/view_cache.h"
#include "common/object_key.h"
#include "mp_sdk/client.h"
#include "proto/data_plane.h"
#include "proto/key_page.h"

namespace ems {
namespace {

std::optional<Duration> SinceMs(uint32_t ms) {
  if (ms == wire::kUnknownMs) return std::nullopt;
  return std::chrono::milliseconds(ms);
}

Tier TierOf(wire::ItemTier tier) {
  if (tier == wire::ItemTier::kDram) return Tier::kDram;
  return tier == wire::ItemTier::kSsd ? Tier::kSsd : Tier::kUnknown;
}

}  // namespace

struct KeyScan::State {
  Client* client;
  ViewCache::View view;  // when it began
  std::string prefix;
  uint32_t keys_max;
  Duration timeout;
  size_t server = 0;  // of the view's, the one that is walked
  wire::ScanCursor cursor = wire::kScanBegin;
  std::vector<Failure> failures{};
};

Result<KeyScan> KeyScan::Begin(Client* client, const ScanOptions& options) {
  if (options.prefix.size() > kKeyBytesMax || options.keys_max == 0 ||
      options.keys_max > wire::kScanItemsMax) {
    return Error(StatusCode::kInvalidArgument,
                 "a scan for {} keys with a prefix of {} bytes: 1 to {} keys, {} bytes at most",
                 options.keys_max, options.prefix.size(), wire::kScanItemsMax, kKeyBytesMax);
  }
  return KeyScan(std::make_unique<State>(State{.client = client,
                                               .view = client->views().view(),
                                               .prefix = std::string(options.prefix),
                                               .keys_max = options.keys_max,
                                               .timeout = options.timeout}));
}

KeyScan::KeyScan(std::unique_ptr<State> state) : state_(std::move(state)) {}
KeyScan::KeyScan(KeyScan&&) noexcept = default;
KeyScan& KeyScan::operator=(KeyScan&&) noexcept = default;
KeyScan::~KeyScan() = default;

bool KeyScan::done() const { return state_->server == state_->view->nodes().size(); }
const std::vector<KeyScan::Failure>& KeyScan::failures() const { return state_->failures; }
bool KeyScan::view_changed() const {
  return state_->client->views().view()->version() != state_->view->version();
}

std::vector<KeyInfo> KeyScan::Next() {
  std::vector<KeyInfo> keys;
  if (done()) return keys;
  State& state = *state_;
  const NodeInfo& node = state.view->nodes()[state.server];
  const wire::ScanBody body{.cursor = state.cursor, .items_max = state.keys_max};
  std::string request(AsText(wire::RawBytes(body)));
  request += state.prefix;
  const NamespaceRef ns = state.client->name_space().ref;
  wire::FrameHeader header;
  header.op = wire::Op::kScan;
  header.namespace_id = ns.id.value();
  header.namespace_generation = ns.generation;
  header.view = state.view->version().packed();
  const Result<std::string> answer =
      state.client->Ask(node, header, AsBytes(request), state.timeout);
  Result<wire::KeyPage> page =
      answer.ok() ? wire::ParseKeyPage(AsBytes(*answer)) : Result<wire::KeyPage>(answer.status());
  if (!page.ok()) state.failures.push_back({node.name, page.status()});
  if (!page.ok() || !page->next) {
    ++state.server;
    state.cursor = wire::kScanBegin;
    if (!page.ok()) return keys;
  } else {
    state.cursor = *page->next;
  }
  keys.reserve(page->keys.size());
  for (wire::ListedKey& one : page->keys) {
    keys.push_back({.key = std::move(one.key),
                    .bytes = one.value_bytes,
                    .tier = TierOf(one.tier),
                    .age = SinceMs(one.age_ms),
                    .idle = SinceMs(one.idle_ms)});
  }
  return keys;
}

}  // namespace ems
