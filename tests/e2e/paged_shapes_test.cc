// Paged KV of real models at their real sizes through real servers and back, byte for byte: 61
// layers of MLA latents and 80 layers of GQA, blocks of 16 to 512 tokens, every token in a slot of
// its own, and an engine that keeps its pages otherwise than the one that saved them.
//
// Bound: 170 MB a prompt, of which two engines and the pool have a copy each: below 1 GB in all.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "ems_context/block_hash.h"
#include "ems_context/paged_cache.h"
#include "tests/ems_context/paged_memory.h"
#include "tests/support/cluster.h"

namespace ems::context {
namespace {

using std::chrono::seconds;

struct Model {
  const char* name;
  size_t layers;
  uint32_t heads;
  std::vector<uint32_t> head_sizes;  // of a layer's tensors
  uint32_t prompt_tokens;            // at least a block
};
const Model kMla{"MLA", 61, 1, {512, 64}, 512};
const Model kGqa{"GQA", 80, 8, {128, 128}, 128};

// What lies next to each other in an engine's memory.
enum class Packing {
  kTensors,     // each tensor for itself
  kBlockFirst,  // [blocks, layers, tensors, …]
  kTokenFirst,  // [blocks, tokens, layers, tensors, …]
};

// One engine's KV memory and where the tokens of its prompt are in it.
class Engine final {
 public:
  Engine(const Model& model, KvOrder order, Packing packing, uint32_t page_tokens, uint32_t tokens,
         uint64_t seed)
      : order_(order), packing_(packing), page_tokens_(page_tokens) {
    pages_ = (tokens + page_tokens - 1) / page_tokens + 2;
    for (const uint32_t size : model.head_sizes) token_bytes_ += TokenBytes(model, size);
    token_bytes_ *= model.layers;
    memory_.resize(token_bytes_ * page_tokens * pages_, kEmpty);
    uint64_t before = 0;  // bytes of a token in the tensors before
    for (size_t i = 0; i < model.layers; ++i) {
      layers_.emplace_back();
      for (const uint32_t size : model.head_sizes) {
        layers_.back().tensors.push_back(Tensor(model, size, before));
        before += TokenBytes(model, size);
      }
    }
    std::mt19937_64 random(seed);
    slots_.resize(pages_ * page_tokens);
    for (size_t i = 0; i < slots_.size(); ++i) slots_[i] = static_cast<int64_t>(i);
    std::shuffle(slots_.begin(), slots_.end(), random);
    slots_.resize(tokens);
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const std::vector<KvLayer>& layers() const { return layers_; }

  void Fill(uint64_t seed) {
    std::mt19937_64 random(seed);
    for (size_t at = 0; at + 8 <= memory_.size(); at += 8) {
      const uint64_t word = random();
      std::memcpy(memory_.data() + at, &word, 8);
    }
  }
  std::vector<PagedBlock> Blocks(const std::vector<std::string>& keys) const {
    std::vector<PagedBlock> blocks;
    const size_t tokens = slots_.size() / keys.size();
    for (size_t i = 0; i < keys.size(); ++i)
      blocks.push_back({keys[i], {RunsOf(std::span(slots_).subspan(i * tokens, tokens))}});
    return blocks;
  }
  // Head by head; then what was compared is blanked, and nothing else may be in the memory.
  void ExpectTheTokensOf(const Engine& other) {
    for (size_t i = 0; i < layers_.size(); ++i) {
      for (size_t j = 0; j < layers_[i].tensors.size(); ++j) {
        std::vector<const std::byte*> theirs;
        test::VisitHeads(other.layers_[i].tensors[j], other.slots_,
                         [&](const std::byte* data, uint64_t) { theirs.push_back(data); });
        size_t at = 0, wrong = 0;
        test::VisitHeads(layers_[i].tensors[j], slots_, [&](std::byte* data, uint64_t bytes) {
          wrong += std::memcmp(data, theirs.at(at++), bytes) == 0 ? 0 : 1;
          std::memset(data, kEmpty, bytes);
        });
        EXPECT_EQ(at, theirs.size());
        EXPECT_EQ(wrong, 0u) << "layer " << i << ", tensor " << j;
      }
    }
    EXPECT_EQ(memory_.find_first_not_of(kEmpty), std::string::npos) << "a slot that nobody named";
  }

 private:
  static constexpr char kEmpty = '\x5a';

  static uint64_t TokenBytes(const Model& model, uint32_t head_size) {
    return uint64_t{model.heads} * head_size * 2;
  }
  KvTensor Tensor(const Model& model, uint32_t head_size, uint64_t before) {
    KvTensor tensor;
    tensor.dtype = KvDtype::kBfloat16;
    tensor.order = order_;
    tensor.blocks = pages_;
    tensor.block_tokens = page_tokens_;
    tensor.heads = model.heads;
    tensor.head_size = head_size;
    const uint64_t head = uint64_t{head_size} * 2, token = head * model.heads;
    const bool tokens_first = order_ == KvOrder::kTokensFirst;
    tensor.head_stride = tokens_first ? head : head * page_tokens_;
    tensor.token_stride = tokens_first ? token : head;
    tensor.block_stride = token * page_tokens_;
    uint64_t offset = before * page_tokens_;  // of a page
    if (packing_ == Packing::kTensors) {
      offset *= pages_;
    } else {
      tensor.block_stride = token_bytes_ * page_tokens_;
    }
    if (packing_ == Packing::kTokenFirst) {
      tensor.token_stride = token_bytes_;
      offset = before;
    }
    tensor.data = reinterpret_cast<std::byte*>(memory_.data()) + offset;
    tensor.bytes = (pages_ - 1) * tensor.block_stride + (page_tokens_ - 1) * tensor.token_stride +
                   (model.heads - 1) * tensor.head_stride + head;
    return tensor;
  }

  const KvOrder order_;
  const Packing packing_;
  const uint32_t page_tokens_;
  uint64_t pages_ = 0;
  uint64_t token_bytes_ = 0;  // of all layers
  std::string memory_;
  std::vector<KvLayer> layers_;
  std::vector<int64_t> slots_;  // [tokens]
};

// An engine's way to the pool.
struct Door {
  Door(const ems::testing::Cluster& cluster, TransportChoice transport) {
    auto connected = cluster.Connect(transport, seconds(30));
    EXPECT_TRUE(connected.ok()) << connected.status();
    client = *std::move(connected);
    store = std::make_unique<ClientBlockStore>(client.get());
    cache =
        std::make_unique<ContextCache>(store.get(), ContextCacheOptions{.timeout = seconds(30)});
  }
  std::unique_ptr<PagedCache> Register(const Engine& engine) {
    auto layout = KvLayout::Make(engine.layers());
    EXPECT_TRUE(layout.ok()) << layout.status();
    return std::make_unique<PagedCache>(cache.get(), store.get(), *std::move(layout));
  }
  std::unique_ptr<Client> client;
  std::unique_ptr<ClientBlockStore> store;
  std::unique_ptr<ContextCache> cache;
};

class PagedShapesTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  static void SetUpTestSuite() {
    auto started =
        ems::testing::Cluster::Start({.servers = 2,
                                      .controller_flags = {},
                                      .server_flags = {"--set", "dram.bytes=448MiB", "--set",
                                                       "network.value_bytes_max=192MiB"}});
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = *std::move(started);
    near_ = std::make_unique<Door>(*cluster_, TransportChoice::kAuto);
    far_ = std::make_unique<Door>(*cluster_, TransportChoice::kTcp);
  }
  static void TearDownTestSuite() {
    near_.reset();
    far_.reset();
    cluster_.reset();
  }

  static std::vector<std::string> Keys(const PagedCache& paged, uint32_t block_tokens,
                                       uint32_t tokens) {
    KeyDomain domain;
    domain.model = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    domain.dtype = "bf16";
    const auto hasher = BlockHasher::Make(paged.DomainFor(domain), HashKind::kSha256, block_tokens);
    EXPECT_TRUE(hasher.ok()) << hasher.status();
    std::vector<int32_t> prompt(tokens);
    for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i * 31 + 7);
    return hasher->HashTokens(prompt);
  }

  static LoadResult LayerByLayer(PagedCache* paged, const std::vector<PagedBlock>& blocks) {
    const LayerLoad load = paged->LoadLayers(blocks);
    for (size_t layer = 0; layer < load.layers(); ++layer) {
      const auto ready = load.WaitLayer(layer, Deadline::After(seconds(30)));
      EXPECT_TRUE(ready.ok()) << ready.status();
      if (!ready.ok()) break;
      EXPECT_EQ(ready->leading_blocks, blocks.size()) << "layer " << layer;
    }
    return load.Result();
  }

  // Saves from one engine; `packings` are those of engines that load it: the first on this host,
  // the others over TCP and layer by layer.
  static void RoundTrip(const Model& model, KvOrder order, Packing saved,
                        std::initializer_list<Packing> packings) {
    SCOPED_TRACE(std::string(model.name) + " " + std::string(NameOf(order)));
    const uint32_t block_tokens = GetParam();
    const uint32_t tokens = std::max(model.prompt_tokens, block_tokens);
    Engine writer(model, order, saved, 16, tokens, block_tokens);
    writer.Fill(block_tokens + 1);
    const auto from = near_->Register(writer);
    const std::vector<std::string> keys = Keys(*from, block_tokens, tokens);
    ASSERT_EQ(keys.size(), tokens / block_tokens);
    const SaveResult result = from->Save(writer.Blocks(keys), SavePhase::kPrefill);
    ASSERT_EQ(result.stored_blocks, keys.size()) << ToString(result.blocks[0]);
    bool first = true;
    for (const Packing packing : packings) {
      SCOPED_TRACE(static_cast<int>(packing));
      Engine reader(model, order, packing, 64, tokens, block_tokens + 2);
      const auto into = (first ? near_ : far_)->Register(reader);
      EXPECT_EQ(Keys(*into, block_tokens, tokens), keys) << "pages and strides are not in a key";
      const std::vector<PagedBlock> blocks = reader.Blocks(keys);
      const LoadResult loaded = first ? into->Load(blocks) : LayerByLayer(into.get(), blocks);
      ASSERT_EQ(loaded.leading_blocks, keys.size()) << ToString(loaded.blocks[0].status());
      reader.ExpectTheTokensOf(writer);
      first = false;
    }
    for (const std::string& key : keys) EXPECT_EQ(near_->client->Remove(key), OkStatus());
  }

  static inline std::unique_ptr<ems::testing::Cluster> cluster_;
  static inline std::unique_ptr<Door> near_, far_;
};

TEST_P(PagedShapesTest, MlaOf61LayersTokensFirst) {
  RoundTrip(kMla, KvOrder::kTokensFirst, Packing::kTensors,
            {Packing::kBlockFirst, Packing::kTokenFirst});
}
TEST_P(PagedShapesTest, MlaOf61LayersHeadsFirst) {
  RoundTrip(kMla, KvOrder::kHeadsFirst, Packing::kBlockFirst, {Packing::kTensors});
}
TEST_P(PagedShapesTest, GqaOf80LayersTokensFirst) {
  RoundTrip(kGqa, KvOrder::kTokensFirst, Packing::kTokenFirst,
            {Packing::kTensors, Packing::kBlockFirst});
}
TEST_P(PagedShapesTest, GqaOf80LayersHeadsFirst) {
  RoundTrip(kGqa, KvOrder::kHeadsFirst, Packing::kTensors,
            {Packing::kBlockFirst, Packing::kTensors});
}

INSTANTIATE_TEST_SUITE_P(BlockTokens, PagedShapesTest, ::testing::Values(16, 32, 64, 128, 256, 512),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace ems::context
