"""Graph attention over one dense graph with masks of nodes, early stopping by the loss of held-out nodes."""

import torch
from torch import nn
from torch.nn import functional as F

num_nodes, num_features, num_classes = 600, 256, 7
device = torch.device("cuda")


class GraphAttention(nn.Module):
    def __init__(self, ins, outs, heads, concat):
        super().__init__()
        self.heads, self.outs, self.concat = heads, outs, concat
        self.W = nn.Parameter(torch.empty(ins, heads * outs))
        self.a = nn.Parameter(torch.empty(heads, 2 * outs, 1))
        nn.init.xavier_normal_(self.W)
        nn.init.xavier_normal_(self.a)

    def forward(self, h, adjacency):
        h = F.dropout(h @ self.W, 0.6, training=self.training).view(-1, self.heads, self.outs).permute(1, 0, 2)
        scores = F.leaky_relu(h @ self.a[:, : self.outs] + (h @ self.a[:, self.outs :]).mT, 0.2)
        scores = torch.where(adjacency > 0, scores, -9e16 * torch.ones_like(scores))
        h = F.dropout(scores.softmax(-1), 0.6, training=self.training) @ h
        return h.permute(1, 0, 2).reshape(h.size(1), -1) if self.concat else h.mean(0)


class GAT(nn.Module):
    def __init__(self):
        super().__init__()
        self.gat1 = GraphAttention(num_features, 8, heads=8, concat=True)
        self.gat2 = GraphAttention(64, num_classes, heads=1, concat=False)

    def forward(self, x, adjacency):
        return self.gat2(F.elu(self.gat1(x, adjacency)), adjacency).log_softmax(1)


features = torch.rand(num_nodes, num_features)
labels = torch.randint(num_classes, (num_nodes,)).to(device)
edges = torch.randint(num_nodes, (2, 2400))
adjacency = torch.sparse_coo_tensor(edges, torch.ones(2400), (num_nodes, num_nodes)).to_dense()
adjacency = (adjacency + torch.eye(num_nodes)).to(device)
features = (features / features.sum(1, keepdim=True)).to(device)
order = torch.randperm(num_nodes).to(device)
idx_train, idx_val, idx_test = order[:200], order[200:400], order[400:]
net = GAT().to(device)
optimizer = torch.optim.Adam(net.parameters(), lr=0.005, weight_decay=5e-4)
best, worse = float("inf"), 0
for epoch in range(20):
    net.train()
    optimizer.zero_grad()
    loss = F.nll_loss(net(features, adjacency)[idx_train], labels[idx_train])
    loss.backward()
    optimizer.step()
    net.eval()
    with torch.no_grad():
        output = net(features, adjacency)
        val_loss = F.nll_loss(output[idx_val], labels[idx_val]).item()
        acc = (output[idx_val].argmax(1) == labels[idx_val]).float().mean().item()
    best, worse = (val_loss, 0) if val_loss < best else (best, worse + 1)
    if worse > 10:
        break
print(f"epoch {epoch}: {val_loss:.3f}, {acc:.3f}")
print("max memory allocated", torch.cuda.max_memory_allocated())
