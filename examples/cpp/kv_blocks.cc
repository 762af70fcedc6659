// Prefix caching of KV blocks in C++; docs/ENGINE_DEVELOPERS.md quotes it.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ems_context/block_hash.h"
#include "ems_context/block_store.h"
#include "ems_context/context_cache.h"
#include "mp_sdk/client.h"

constexpr size_t kBlockTokens = 128;

// Stands for prefill: the bytes of block i follow from its tokens.
void Compute(std::span<const int32_t> tokens, size_t i, std::string* block) {
  for (size_t at = 0; at < block->size(); ++at) {
    (*block)[at] = static_cast<char>(tokens[i * kBlockTokens + at % kBlockTokens]);
  }
}

ems::Status Serve(const std::string& controller_address, std::span<const int32_t> tokens,
                  size_t block_bytes) {
  ems::ClientOptions options;
  options.controller = controller_address;  // host:port
  options.name_space = "default";
  ems::Result<std::unique_ptr<ems::Client>> client = ems::Client::Connect(options);
  if (!client.ok()) return client.status();  // no controller, or no such namespace

  EMS_RETURN_IF_ERROR((*client)->Put("greeting", std::string_view("hello")));
  ems::Result<std::string> value = (*client)->Get("greeting");
  if (!value.ok() && value.status().code() != ems::StatusCode::kNotFound) return value.status();

  std::vector<ems::PutItem> items{{.key = "a", .value = std::string_view("1")},
                                  {.key = "b", .value = std::string_view("2")}};
  for (const ems::Status& status : (*client)->MultiPut(items)) EMS_RETURN_IF_ERROR(status);

  ems::Result<ems::ObjectView> view = (*client)->GetView("greeting");
  if (view.ok()) std::fwrite(view->bytes().data(), 1, view->size_bytes(), stderr);
  ems::Result<ems::StagingBuffer> staged = (*client)->AllocateBuffer(4096);
  if (!staged.ok()) return staged.status();
  std::memset(staged->bytes().data(), 'x', 4096);
  EMS_RETURN_IF_ERROR((*client)->Put("made in place", ems::ConstBytes(staged->bytes())));
  ems::context::ClientBlockStore store(client->get());
  ems::context::ContextCache cache(&store);
  // Everything that makes two blocks with equal tokens different belongs into the domain.
  ems::context::KeyDomain domain;
  domain.model = "fingerprint of the weights";
  domain.dtype = "bf16";
  domain.kv_layout = "NHD/2x8x128";
  EMS_ASSIGN_OR_RETURN(const ems::context::BlockHasher hasher,
                       ems::context::BlockHasher::Make(domain));

  const ems::context::LookupResult found = cache.Lookup(hasher, tokens);
  const std::span<const std::string> keys = found.keys;  // of all full blocks
  std::vector<std::string> blocks(keys.size(), std::string(block_bytes, '\0'));
  std::vector<ems::MutableBuffers> into;
  for (std::string& block : blocks) {
    into.emplace_back(ems::MutableBytes(std::as_writable_bytes(std::span(block))));
  }
  const ems::context::LoadResult loaded =
      cache.Load(keys.first(found.leading_blocks), std::span(into).first(found.leading_blocks));

  const size_t have = loaded.leading_blocks;  // compute everything behind these
  for (size_t i = have; i < blocks.size(); ++i) Compute(tokens, i, &blocks[i]);

  std::vector<ems::ConstBuffers> values;
  for (size_t i = have; i < blocks.size(); ++i) values.emplace_back(std::string_view(blocks[i]));
  const ems::context::SaveResult saved = cache.Save(keys.subspan(have), values);
  std::printf("%zu blocks loaded, %zu computed, %zu saved\n", have, blocks.size() - have,
              saved.stored_blocks);
  return ems::OkStatus();
}

int main(int argc, char** argv) {
  const std::string controller = argc > 1 ? argv[1] : "127.0.0.1:7400";
  std::vector<int32_t> prompt(1000);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i * 7);
  for (int request = 0; request < 2; ++request) {
    const ems::Status served = Serve(controller, prompt, 50'000);
    if (!served.ok()) {
      std::fprintf(stderr, "%s\n", ems::ToString(served).c_str());
      return 1;
    }
  }
  return 0;
}
